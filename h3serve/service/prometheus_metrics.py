"""Prometheus metrics of one server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from h3serve.service.jobs.job import Job, Json, State

_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
_FAST_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Metrics:
    """A registry of its own, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.queue_wait = Histogram(
            "h3serve_queue_wait_seconds", "From creation to start", buckets=_SECONDS, registry=own
        )
        self.jobs = Counter("h3serve_jobs", "Jobs ended", ["state", "task"], registry=own)
        self.failures = Counter("h3serve_failures", "Failed jobs", ["cause"], registry=own)
        self.stages = Histogram("h3serve_stage_seconds", "Per stage", ["stage"], buckets=_SECONDS, registry=own)
        self.steps_per_second = Gauge(
            "h3serve_steps_per_second", "Denoise steps per second of the last job", registry=own
        )
        self.memory = Gauge("h3serve_memory_peak_bytes", "Of the last load or job", ["phase", "kind"], registry=own)
        self.load_seconds = Gauge("h3serve_load_seconds", "Of the last model load", registry=own)
        self.restarts = Counter("h3serve_worker_restarts", "Workers replaced", registry=own)
        self.webhooks = Counter("h3serve_webhooks", "Deliveries", ["result"], registry=own)
        self.requests = Histogram(
            "h3serve_http_request_seconds",
            "HTTP requests",
            ["method", "route", "status"],
            buckets=_FAST_SECONDS,
            registry=own,
        )

    def loaded(self, stats: Json) -> None:
        """A worker is ready; `stats` holds seconds and, on a GPU, the peak in bytes."""
        self.load_seconds.set(float(stats["seconds"]))
        self._memory({"load": stats.get("peak_bytes", 0)}, stats)

    def ended(self, job: Job) -> None:
        """A job reached a final state."""
        self.jobs.labels(job.state, job.task).inc()
        if job.state is State.FAILED:
            self.failures.labels(job.error_code or "unknown").inc()
        stats = job.stats or {}
        for stage, seconds in stats.get("seconds", {}).items():
            self.stages.labels(stage).observe(seconds)
        if denoise_s := stats.get("seconds", {}).get("denoise"):
            self.steps_per_second.set(job.plan.get("steps", 0) / denoise_s)
        self._memory(stats.get("peak_bytes", {}), stats)

    def watch(self, counts: Callable[[], Mapping[State, int]], workers: Callable[[], Json]) -> None:
        """Read queue depth and worker states when somebody asks for the metrics."""
        self.registry.register(_Live(counts, workers))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _memory(self, device: Mapping[str, float], stats: Json) -> None:
        """Peaks of the device per phase, and of the worker's host memory since its start."""
        for phase, size in device.items():
            if size:
                self.memory.labels(phase, "device").set(size)
        if host := stats.get("host_peak_bytes"):
            self.memory.labels("any", "host").set(host)


class _Live(Collector):
    def __init__(self, counts: Callable[[], Mapping[State, int]], workers: Callable[[], Json]) -> None:
        self._counts, self._workers = counts, workers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        counts = self._counts()
        depth = GaugeMetricFamily("h3serve_queue_depth", "Jobs waiting")
        depth.add_metric([], counts[State.QUEUED])
        running = GaugeMetricFamily("h3serve_jobs_running", "Jobs being generated")
        running.add_metric([], counts[State.IN_PROGRESS])
        workers = GaugeMetricFamily("h3serve_workers", "Workers", labels=["state"])
        for state, number in self._workers().items():
            workers.add_metric([state], number)
        return [depth, running, workers]
