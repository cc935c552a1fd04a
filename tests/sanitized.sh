#!/usr/bin/env bash
# Build the native library with the address and undefined-behaviour sanitizers and run its tests.
# The library lies in the source tree for that time, where it is found before an installed one.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
bin=$(dirname "$python")
library=octavo/backends/native/liboctavo.so
kept=$(mktemp -d)
[ -e "$library" ] && mv "$library" "$kept/"
trap 'rm -f "$library"; [ -e "$kept/liboctavo.so" ] && mv "$kept/liboctavo.so" "$library"; rm -rf "$kept"' EXIT

"$bin/cmake" -S . -B build/sanitized -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DOCTAVO_SANITIZE=ON -DOCTAVO_TOOLS=ON -DCMAKE_MAKE_PROGRAM="$(realpath "$bin/ninja")" >/dev/null
"$bin/cmake" --build build/sanitized
build/sanitized/test_linear
# Python itself leaks by design; everything else is fatal.
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    "$python" -m pytest tests/engine/test_ops.py tests/engine/test_native_attention.py \
    tests/engine/test_native_sampling.py tests/engine/test_native_packed.py \
    tests/engine/test_native_engine.py tests/engine/test_engine.py
