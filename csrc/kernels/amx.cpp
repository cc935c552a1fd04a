// AMX int8 and bf16 tiles, over AVX-512 with VNNI and BF16.
#include "amx.h"

namespace octavo {

const Kernels kAmxKernels = tile_kernels<HardwareTiles>();

}  // namespace octavo
