"""octavo bench"""

from __future__ import annotations

from octavo.bench.loop import bench_loop
from octavo.bench.ops import bench_ops
from octavo.bench.run import BenchOptions, bench
from octavo.cli.bars import bars
from octavo.cli.parser import Arguments, options_of
from octavo.config import EngineArgs


def run(options: Arguments) -> int:
    if options.kind == "loop":
        return bench_loop(options.num_iters)
    if options.kind == "ops":
        return bench_ops(options_of(EngineArgs, options), options.num_iters, bars())
    return bench(
        BenchOptions(
            kind=options.kind,
            input_len=options.input_len,
            output_len=options.output_len,
            num_prompts=options.num_prompts,
            num_iters=options.num_iters,
        ),
        options_of(EngineArgs, options),
        bars(),
    )
