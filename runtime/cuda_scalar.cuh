/* cuda_scalar.cuh - the host's functions of one element (host_scalar.inc) in f32 and f64. */
#ifndef FERRY_CUDA_SCALAR_CUH
#define FERRY_CUDA_SCALAR_CUH

#include "runtime/cuda_common.cuh"

#define T       float
#define F(name) name##_f32
#define M(name) name##f
#include "runtime/host_scalar.inc"
#undef T
#undef F
#undef M

#define T       double
#define F(name) name##_f64
#define M(name) name
#include "runtime/host_scalar.inc"
#undef T
#undef F
#undef M

#endif
