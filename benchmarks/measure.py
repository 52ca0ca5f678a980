# Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
"""Paired timings that a busy machine disturbs little, and peak memory in a fresh process."""

import ctypes
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from .contenders import BASELINE, Case, Step, contenders


# A timing shorter than this repeats the step, so that the clock and the scheduler do not decide.
SHORTEST_TIMING_S = 0.02


def synchronise(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


def timing(case: Case, step: Step, repeats: int) -> float:
    """
    Seconds a step: of the process where it has one thread, so that other work on the machine does not count, else by
    the clock on the wall.
    """
    clock = time.process_time if case.device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    synchronise(case)
    start = clock()
    for _ in range(repeats):
        step()
    synchronise(case)
    return (clock() - start) / repeats


def ratios(case: Case, rounds: int, names: list[str] | None = None) -> dict[str, dict[str, float]]:
    """
    Time over the baseline's: every round times the baseline right before or right after the contender, by turns, and
    keeps the quotient. By name: median, quartiles, and the median milliseconds. Who cannot take part is left out.
    """
    torch.manual_seed(0)
    steps: dict[str, Step] = {}
    for name, prepare in contenders(case).items():
        if names is not None and name not in (BASELINE, *names):
            continue
        try:
            step = prepare(case)
            step()
        except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
            print(f"  left out: {name}: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        steps[name] = step
    repeats = {name: max(1, int(SHORTEST_TIMING_S / timing(case, step, 1))) for name, step in steps.items()}
    quotients: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in steps:
            if name == BASELINE:
                continue
            pair = [BASELINE, name] if turn % 2 else [name, BASELINE]
            times = {who: timing(case, steps[who], repeats[who]) for who in pair}
            quotients[name].append(times[name] / times[BASELINE])
            for who, spent in times.items():
                seconds[who].append(spent)
    quotients[BASELINE] = [1.0, 1.0]
    return {
        name: {
            "ratio": statistics.median(values),
            "low": statistics.quantiles(values, n=4)[0],
            "high": statistics.quantiles(values, n=4)[2],
            "ms": statistics.median(seconds[name]) * 1e3 if seconds[name] else float("nan"),
        }
        for name, values in quotients.items()
    }


def resident(field: str) -> int:
    """Bytes of this process, `VmRSS` now or `VmHWM` at most (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: peak memory is measured on Linux only.")


def peak_here(case: Case, name: str) -> float:
    """Extra bytes at the peak of one step, in this process: run it in a fresh one."""
    warm = dataclasses.replace(case, batch=1, length=16)
    contenders(warm)[name](warm)()
    step = contenders(case)[name](case)
    if case.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    # What was freed goes back first: the step must not find it and count as frugal.
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def peak(case: Case, name: str) -> float | None:
    """MiB above what inputs and parameters take, the median of three processes, or None if one of them failed."""
    command = [sys.executable, "-m", "benchmarks", "peak", name, json.dumps(dataclasses.asdict(case))]
    found = []
    for _ in range(3):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).parents[1]
        )
        if done.returncode:
            print(f"  left out: {name}: {done.stderr.strip().splitlines()[-1][:120] if done.stderr else 'no reason'}")
            return None
        found.append(float(done.stdout.splitlines()[-1]) / 2**20)
    return statistics.median(found)
