/* models.h - how PyTorch's caching allocator divides memory, with and without expandable segments: enough of it to know
 * what it would reserve for a trace. After the documentation and the behaviour of PyTorch 2.11:
 *
 *   - sizes are rounded up to 512 bytes; up to 1 MiB they go to the small pool, else to the large one
 *
 *   - the smallest free block of the stream that is large enough is taken, the lowest address among equals; it is split
 *     when the rest is at least 512 bytes (small pool, expandable segments) or more than 1 MiB (large pool)
 *
 *   - else a segment is allocated: 2 MiB (small pool), 20 MiB (requests below 10 MiB), or the size rounded up to 2 MiB;
 *     expandable: the pool's one segment grows behind its last block, by pages of 2 MiB (small) or 20 MiB (large)
 *
 *   - a freed block is merged with its free neighbours of the same segment */
#ifndef FERRY_BENCH_MODELS_H
#define FERRY_BENCH_MODELS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct torch_model torch_model;
typedef struct torch_block torch_block;

torch_model *torch_open(bool expandable); /* NULL: no memory */
void torch_close(torch_model *m);
torch_block *torch_alloc(torch_model *m, int64_t bytes, int stream);
void torch_free(torch_model *m, torch_block *b);
int64_t torch_reserved(const torch_model *m);
int64_t torch_calls(const torch_model *m); /* cudaMalloc, or pages mapped */

#endif
