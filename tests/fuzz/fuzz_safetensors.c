/* Any bytes as a safetensors file: an error with a message, or tensors that together are exactly the file's data. */
#include "memory_file.h"

#include <string.h>

#include "runtime/ferry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_weights *w;
    ferry_status status = ferry_weights_open(memory_file(data, size), &w);
    if (status != FERRY_OK) {
        if (status != FERRY_BAD_DATA || w != NULL || ferry_error()[0] == 0) {
            abort();
        }
        return 0;
    }
    uint64_t header;
    int64_t total = 0;
    memcpy(&header, data, sizeof header);
    for (int i = 0; i < ferry_weights_count(w); i++) {
        const ferry_tensor *t = ferry_weights_at(w, i);
        int64_t bytes = ferry_tensor_bytes(t);
        if (bytes < 0 || ferry_weights_find(w, t->name) != t || (uintptr_t)t->data % ferry_dtype_bytes(t->dtype) != 0) {
            abort();
        }
        touch_bytes(t->data, bytes);
        total += bytes;
    }
    if ((uint64_t)total + header + 8 != size) {
        abort();
    }
    const char *step = ferry_weights_meta(w, "step");
    touch_bytes(step != NULL ? step : "", step != NULL ? (int64_t)strlen(step) : 0);
    ferry_weights_close(w);
    return 0;
}
