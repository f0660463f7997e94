"""Token sources held in memory, results to draw, and a headless Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from debian_packages import need

from activault.analyze import (
    LossCurve,
    ProbeRow,
    R2Row,
    ReportInputs,
    StoreFacts,
    analyze_store,
    write_report,
)
from activault.store.layout import TokenKind, TokenLayout, parse_kinds


@dataclass
class ArraySource:
    """What `LayerSource` asks for, over one array (rows, layers, all tokens, D); notes every read."""

    array: np.ndarray
    layout: TokenLayout
    kinds: tuple[TokenKind, ...] = ()
    layers: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds = self.kinds or self.layout.kinds
        self.layers = self.layers or tuple(range(self.array.shape[1]))

    @property
    def dim(self) -> int:
        return int(self.array.shape[-1])

    @property
    def valid_rows(self) -> np.ndarray:
        return np.setdiff1d(np.arange(len(self.array)), np.array(self.bad, dtype=np.int64))

    def read(
        self,
        rows: slice | Sequence[int] | np.ndarray,
        layers: Iterable[int],
        tokens: str | Sequence[TokenKind] = "all",
    ) -> np.ndarray:
        kinds = [kind for kind in parse_kinds(tokens, self.layout) if kind in self.kinds]
        columns = np.concatenate([np.r_[self.layout.span(kind)] for kind in kinds])
        places = [self.layers.index(layer) for layer in layers]
        found = self.array[rows][:, places][:, :, columns]
        self.reads.append(len(found))
        return np.ascontiguousarray(found, dtype=np.float32)


def random_source(
    rows: int = 12,
    layers: int = 6,
    dim: int = 8,
    registers: int = 2,
    grid: tuple[int, int] = (2, 3),
    seed: int = 0,
) -> ArraySource:
    """A random walk over the layers, so that near layers are alike."""
    layout = TokenLayout(num_cls=1, num_registers=registers, grid=grid)
    steps = np.random.default_rng(seed).normal(size=(rows, layers, layout.num_tokens, dim))
    return ArraySource(np.cumsum(steps, axis=1).astype(np.float32), layout)


@pytest.fixture
def source() -> ArraySource:
    return random_source()


@pytest.fixture(scope="session")
def make_source() -> Callable[..., ArraySource]:
    return random_source


FACTS = StoreFacts(
    teacher="demo",
    architecture="vit_tiny",
    source="photographs",
    image_size=(98, 98),
    num_rows=14,
    num_bad=2,
    num_layers=9,
    tokens_per_layer=9,
    dim=8,
    dtype="bfloat16",
    num_bytes=1_000_000,
    float32_bytes=2_650_000,
    digest="0123abcd",
)


@pytest.fixture(scope="session")
def store_inputs() -> ReportInputs:
    """A store alone: 8 blocks, no run."""
    source = random_source(layers=9)
    return ReportInputs(store=FACTS, analysis=analyze_store(source, num_resamples=20), cuts=(2, 4))


@pytest.fixture(scope="session")
def run_inputs() -> ReportInputs:
    """A store and a run with all its results; CLS is far off in early layers and constant at layer 3."""
    source = random_source(layers=9)
    noise = np.random.default_rng(1).normal(scale=0.3, size=source.array[:, 1:].shape)
    analysis = analyze_store(
        source,
        surrogate=lambda first: (source.array[: len(first), 1:] + noise).astype(np.float32),
        num_resamples=20,
    )
    r2 = {"cls": [-18.0, -2.5, None, 0.1, 0.4, 0.5, 0.6, 0.7], "patches": [-1.5, *np.linspace(0.9, 0.4, 7)]}
    scores = {
        "teacher": (0.9, 0.9),
        "surrogate": (0.72, 0.88),
        "identity": (0.2, 0.8),
        "untrained": (0.1, 0.7),
    }
    steps = list(range(500))
    return ReportInputs(
        store=FACTS,
        analysis=analysis,
        cuts=(2, 4),
        r2=[
            R2Row(layer=layer, kind=kind, value=value)
            for kind, values in r2.items()
            for layer, value in enumerate(values, start=1)
        ],
        probes=[
            ProbeRow(name=name, head=head, accuracy=pair[place], retention=pair[place] / 0.9)
            for place, head in enumerate(("frozen", "refitted"))
            for name, pair in scores.items()
        ],
        losses=[
            LossCurve(stage="each phase alone", name="phase 1", steps=[1, 2, 3], values=[3.0, 2.0, 1.0]),
            LossCurve(stage="each phase alone", name="phase 2", steps=[1, 2, 3], values=[2.0, 1.0, 0.5]),
            LossCurve(stage="closed loop", name="loss", steps=steps, values=[1 / (1 + s) for s in steps]),
        ],
        notes={"training": "3 phases of 3 steps"},
    )


@pytest.fixture(scope="session")
def report_folder(run_inputs: ReportInputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("report"), run_inputs).parent


class Browser:
    """A headless Chromium, spoken to in its DevTools protocol over a pipe: JSON, ended by zero bytes."""

    def __init__(self, program: str, profile: Path) -> None:
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        # The protocol's pipe ends are always descriptors 3 and 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", program, *flags],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    events: list[dict[str, Any]]
    _session: str | None = None

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            assert part, "Chromium has gone"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def open(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load a page and wait for it; `events` are those of this page alone."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression evaluates to in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """Uncaught exceptions, console errors and warnings, and log entries of those levels."""
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if (
                method == "Runtime.exceptionThrown"
                or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"))
                or (method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"))
            ):
                found.append(json.dumps(params)[:500])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        os.close(self._write)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    need(lambda: "" if _chromium() else "Chromium", ("chromium", "fonts-dejavu-core"))
    program = _chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        started = Browser(program, Path(profile))
        yield started
        started.close()
