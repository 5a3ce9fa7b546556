/* weights_format.h - what the reader and the writer of safetensors files share. The format is described in weights.c.
 */
#ifndef FERRY_RUNTIME_WEIGHTS_FORMAT_H
#define FERRY_RUNTIME_WEIGHTS_FORMAT_H

#include "runtime/ferry.h"

enum { FERRYI_WEIGHTS_MAX_HEADER = 100 * 1000 * 1000 };
#define FERRYI_WEIGHTS_META "__metadata__"

extern const char *const ferryi_weights_dtype[FERRY_DTYPE_COUNT]; /* "F32", ... by ferry_dtype */

#endif
