"""A Ray cluster of one node for tests: prints its address, lives until its standard input ends."""

import sys

import ray

if __name__ == "__main__":
    folder, cpus = sys.argv[1], int(sys.argv[2])
    ray.init(
        num_cpus=cpus, include_dashboard=False, _temp_dir=folder, log_to_driver=False, object_store_memory=80 << 20
    )
    sys.stdout.write(f"address {ray.get_runtime_context().gcs_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()
