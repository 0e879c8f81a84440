"""Host memory within a cgroup, from files as the kernel writes them."""

from pathlib import Path

from h3serve.system.host_memory import host_memory, oom_kills

GIB = 2**30


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  67108864 kB\nMemFree: 1 kB\nMemAvailable:  33554432 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "memory.current": "5"}
    assert host_memory(system(tmp_path, "0::/\n", files)) == (64 * GIB, 32 * GIB)


def test_a_limit_and_the_page_cache_inside_it(tmp_path: Path) -> None:
    files = {
        "job/memory.max": str(10 * GIB),
        "job/memory.current": str(9 * GIB),
        "job/memory.stat": f"anon {3 * GIB}\ninactive_file {4 * GIB}\nactive_file {GIB}\n",
    }
    assert host_memory(system(tmp_path, "0::/job\n", files)) == (10 * GIB, 6 * GIB)


def test_a_limit_of_a_group_around(tmp_path: Path) -> None:
    files = {
        "outer/memory.max": str(8 * GIB),
        "outer/memory.current": str(2 * GIB),
        "outer/inner/memory.max": "max",
        "outer/inner/memory.current": str(GIB),
    }
    assert host_memory(system(tmp_path, "0::/outer/inner\n", files)) == (8 * GIB, 6 * GIB)


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    files = {
        "memory/box/memory.limit_in_bytes": str(4 * GIB),
        "memory/box/memory.usage_in_bytes": str(GIB),
    }
    cgroup = "3:cpu,cpuacct:/box\n2:memory:/box\n"
    assert host_memory(system(tmp_path, cgroup, files)) == (4 * GIB, 3 * GIB)


def test_the_kills_of_a_container(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    events = {"memory.events": "low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\n"}
    assert oom_kills(system(tmp_path, "0::/\n", events)) == 1
