/* Any bytes as a .npy file: an error with a message, or a tensor whose elements are all there. */
#include "memory_file.h"

#include "runtime/ferry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_npy *f;
    ferry_status status = ferry_npy_open(memory_file(data, size), &f);
    if (status == FERRY_OK) {
        const ferry_tensor *t = ferry_npy_tensor(f);
        int64_t bytes = ferry_tensor_bytes(t);
        if (bytes < 0 || (size_t)bytes > size || (uintptr_t)t->data % ferry_dtype_bytes(t->dtype) != 0) {
            abort();
        }
        touch_bytes(t->data, bytes);
        ferry_npy_close(f);
    } else if (status != FERRY_BAD_DATA || f != NULL || ferry_error()[0] == 0) {
        abort();
    }
    return 0;
}
