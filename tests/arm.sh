#!/usr/bin/env bash
# The kernels for ARM: cross-compiled, and run under emulation. Both tools are Debian packages and are
# installed when they are missing; where that is not possible it says so and ends well.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=$(command -v aarch64-linux-gnu-g++-12 || command -v aarch64-linux-gnu-g++ || true)
if [ -z "$compiler" ] || ! command -v qemu-aarch64-static >/dev/null; then
    (apt-get update -q && apt-get install -y -q g++-12-aarch64-linux-gnu qemu-user-static) >/dev/null 2>&1 ||
        { echo "ARM: no cross compiler or emulator, and none can be installed; not tested" >&2; exit 0; }
    compiler=$(command -v aarch64-linux-gnu-g++-12 || command -v aarch64-linux-gnu-g++)
fi
bin=$(dirname "${1:-.venv/bin/python}")
"$bin/cmake" -S . -B build/arm -G Ninja -DCMAKE_MAKE_PROGRAM="$(realpath "$bin/ninja")" \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXE_LINKER_FLAGS=-static -DOCTAVO_TOOLS=ON >/dev/null
"$bin/cmake" --build build/arm --target octavo_objects test_linear
# A CPU with the dot product, and one without, which must fall back to plain C++.
qemu-aarch64-static -cpu neoverse-n1 build/arm/test_linear
qemu-aarch64-static -cpu cortex-a57 build/arm/test_linear
