/* Any bytes as tokens.bin: an error with a message, or batches of ids for any step. The shape and the step come from
 * the first bytes. */
#include "memory_file.h"

#include <string.h>

#include "runtime/ferry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64], tokens[80];

static void clean_up(void)
{
    unlink(tokens);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    const char *path = memory_file(data + 4, size - 4);
    if (folder[0] == 0) { /* a folder whose tokens.bin is the memory file */
        strcpy(folder, "/tmp/ferry-fuzz-XXXXXX");
        if (mkdtemp(folder) == NULL) {
            abort();
        }
        snprintf(tokens, sizeof tokens, "%s/tokens.bin", folder);
        if (symlink(path, tokens) != 0 || atexit(clean_up) != 0) {
            abort();
        }
    }
    const int64_t batch = data[0] % 8, seq = data[1] % 32;
    ferry_tensor inputs[2] = {{"input_ids", FERRY_I64, 2, {batch, seq}, NULL},
                              {"labels", FERRY_I32, 2, {batch, seq}, NULL}};
    ferry_data *d;
    ferry_status status = ferry_data_open(folder, inputs, 2, &d);
    if (status != FERRY_OK) {
        if (status != FERRY_BAD_DATA || d != NULL || ferry_error()[0] == 0) {
            abort();
        }
        return 0;
    }
    const int64_t steps[] = {0, data[2], (int64_t)data[3] << 55 | data[2], INT64_MAX};
    for (int i = 0; i < 4; i++) {
        const void *out[2];
        status = ferry_data_batch(d, steps[i], out);
        if (status == FERRY_OK) {
            touch_bytes(out[0], batch * seq * 8);
            touch_bytes(out[1], batch * seq * 4);
        } else if (status != FERRY_BAD_DATA) { /* an id that i32 cannot hold */
            abort();
        }
    }
    ferry_data_close(d);
    return 0;
}
