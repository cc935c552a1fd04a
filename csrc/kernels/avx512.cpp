// AVX-512 with VNNI.
#include "avx512.h"

namespace octavo {

const Kernels kAvx512Kernels = {
    strip<Avx512>,   quantize_row<Avx512>, nullptr, rms_norm<Avx512>, act_mul<Avx512>,
    attend_span<Avx512>, join_spans<Avx512>, scan<Avx512>,
    weigh<Avx512>, select<Avx512>, cut<Avx512>, keep<Avx512>,
    burn<Avx512>,
};

}  // namespace octavo
