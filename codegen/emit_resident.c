/* emit_resident.c - parameters and optimizer state that live on the device: where weights and checkpoints find them. */
#include "codegen/codegen.h"

#include <inttypes.h>

static bool lives_on_device(const Buffer *b)
{
    bool state = b->kind == BUFFER_MASTER || b->kind == BUFFER_ROUNDED || b->kind == BUFFER_STATE_M ||
                 b->kind == BUFFER_STATE_V;
    return state && b->pool == POOL_DEVICE;
}

static int count(const StepList *s, int end)
{
    int n = 0;
    for (int i = 0; i < end; i++)
        n += lives_on_device(&s->buffer[i]);
    return n;
}

bool emit_has_residents(const StepList *s)
{
    return count(s, s->n_buffer) > 0;
}

const char *emit_mirror(Emitter *e, int buffer)
{
    const char *text = arena_printf(e->arena, "s->resident_list[%d].mirror", count(e->steps, buffer));
    e->text.failed |= !text;
    return text ? text : "NULL";
}

void emit_resident_fields(Emitter *e)
{
    if (emit_has_residents(e->steps))
        text_add(&e->text,
                 "    struct resident { /* what lives in device memory, and its mirror in ordinary memory */\n"
                 "        void *device, *mirror;\n        int64_t bytes;\n    } resident_list[%d];\n",
                 count(e->steps, e->steps->n_buffer));
}

void emit_residents(Emitter *e)
{
    Text *t = &e->text;
    const StepList *s = e->steps;
    int n = count(s, s->n_buffer);
    if (n == 0)
        return;
    text_add(t, "/* Mirrors for weights and checkpoints; memory that is never touched is never taken. */\n"
                "static ferry_status open_residents(schedule *s)\n{\n    const struct resident list[] = {\n");
    for (int i = 0; i < s->n_buffer; i++)
        if (lives_on_device(&s->buffer[i]))
            text_add(t, "        {%s, NULL, %" PRId64 "},\n", emit_buffer(e, i), s->buffer[i].bytes);
    text_add(t, "    };\n    for (int i = 0; i < %d; i++) {\n        s->resident_list[i] = list[i];\n"
                "        s->resident_list[i].mirror = calloc(1, (size_t)list[i].bytes);\n"
                "        if (!s->resident_list[i].mirror)\n            return FERRY_FAILED;\n    }\n"
                "    return FERRY_OK;\n}\n\n",
             n);
    text_add(t, "/* To the device, after the mirrors were drawn or loaded. */\n"
                "static ferry_status put_residents(schedule *s)\n{\n    for (int i = 0; i < %d; i++) {\n"
                "        const struct resident *r = &s->resident_list[i];\n"
                "        TRY(ferry_device_write(s->load, r->device, r->mirror, r->bytes));\n    }\n"
                "    return FERRY_OK;\n}\n\n",
             n);
    text_add(t, "/* Back to the mirrors, after a sync. */\n"
                "static ferry_status get_residents(schedule *s)\n{\n    for (int i = 0; i < %d; i++) {\n"
                "        const struct resident *r = &s->resident_list[i];\n"
                "        TRY(ferry_device_read(s->store, r->mirror, r->device, r->bytes));\n    }\n"
                "    return FERRY_OK;\n}\n\n",
             n);
    text_add(t, "static void close_residents(schedule *s)\n{\n    for (int i = 0; i < %d; i++)\n"
                "        free(s->resident_list[i].mirror);\n}\n\n",
             n);
}
