/* fuzz_profile.c - libFuzzer harness: arbitrary bytes as a profile and as a device file. What is accepted as a profile
 * is written again, and that text must be accepted and be written the same. clang -fsanitize=fuzzer,address,undefined
 * -D_GNU_SOURCE -I. tests/fuzz/fuzz_profile.c and the libraries */
#include <stdlib.h>
#include <string.h>

#include "profiler/make.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = arena_open();
    Diag d = {0}, other = {0}, third = {0};
    Profile *p, *q;
    DeviceModel *m;
    if (!a)
        return 0;
    if (profile_parse(&d, a, "profile", (const char *)data, size, &p) == ST_OK) {
        Text first = {0}, second = {0};
        profile_text(p, p->options.path, &first);
        if (profile_parse(&third, a, "again", first.at, first.size, &q) != ST_OK)
            abort();
        profile_text(q, q->options.path, &second);
        if (strcmp(first.at, second.at) != 0)
            abort();
        text_free(&first);
        text_free(&second);
    }
    device_model_parse(&other, a, "device", (const char *)data, size, &m);
    arena_close(a);
    return 0;
}
