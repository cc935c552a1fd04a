#include "avx512_bf16.h"

namespace octavo {

const Kernels kAvx512Bf16Kernels = {
    strip<Avx512Bf16>,   quantize_row<Avx512Bf16>, to_bf16, rms_norm<Avx512Bf16>, act_mul<Avx512Bf16>,
    attend_span<Avx512Bf16>, join_spans<Avx512Bf16>, scan<Avx512Bf16>,
    weigh<Avx512Bf16>, select<Avx512Bf16>, cut<Avx512Bf16>, keep<Avx512Bf16>,
    burn<Avx512Bf16>,
};

}  // namespace octavo
