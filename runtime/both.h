/* both.h - functions that are compiled for the host and, by nvcc, for the GPU: what a kernel computes is written once.
 */
#ifndef FERRY_RUNTIME_BOTH_H
#define FERRY_RUNTIME_BOTH_H

#ifdef __CUDACC__
#define FERRYI_BOTH static inline __host__ __device__
#else
#define FERRYI_BOTH static inline
#endif

#endif
