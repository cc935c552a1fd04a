// The AMX kernels over emulated tiles: for tests on machines without the matrix unit.
#include "amx.h"

namespace octavo {

const Kernels kAmxEmulatedKernels = tile_kernels<EmulatedTiles>();

}  // namespace octavo
