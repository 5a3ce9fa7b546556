/* emit_memory.c - struct schedule's buffers and the functions that allocate, map and fill them. */
#include "codegen/codegen.h"

#include <inttypes.h>

typedef struct FieldGroup {
    BufferKind kind;
    BufferPool pool;
    const char *field, *comment;
} FieldGroup;

static const FieldGroup GROUPS[] = {
    {BUFFER_MASTER, POOL_HOST, "host", "parameters in pinned host memory: what the optimizer updates and DHA reads"},
    {BUFFER_ROUNDED, POOL_HOST, "rounded", "their copies in bf16: what the optimizer writes as well, and loads and DHA read"},
    {BUFFER_PARAM, POOL_DEVICE, "gpu", "copies of parameters in device memory, filled by loads"},
    {BUFFER_PARAM_BP, POOL_DEVICE, "gpu_bp", "second copies for the backward pass, of what is loaded twice"},
    {BUFFER_GRAD, POOL_DEVICE, "gpu_grad", "gradients in device memory, copied to host_grad by stores"},
    {BUFFER_HOST_GRAD, POOL_HOST, "host_grad", "gradients in pinned host memory: what the optimizer reads and DHA writes"},
    {BUFFER_STATE_M, POOL_HOST, "moment1", "AdamW's first moments, host memory"},
    {BUFFER_STATE_V, POOL_HOST, "moment2", "AdamW's second moments, host memory"},
    {BUFFER_STATISTIC, POOL_HOST, "running", "running statistics in pinned host memory: kernels bring them up to date by DHA"},
    {BUFFER_STAGING, POOL_HOST, "staging", "the caller's inputs in pinned memory"},
    {BUFFER_INPUT, POOL_DEVICE, "input", "the inputs in device memory"},
    {BUFFER_CONST, POOL_DEVICE, "constant", "constants of the model in device memory"},
    {BUFFER_VALUE, POOL_DEVICE, "act", "activations and their gradients in device memory"},
    {BUFFER_MASTER, POOL_DEVICE, "resident", "parameters that live in device memory and are updated there"},
    {BUFFER_ROUNDED, POOL_DEVICE, "resident_rounded", "their copies in bf16"},
    {BUFFER_STATE_M, POOL_DEVICE, "resident_moment1", "their first moments"},
    {BUFFER_STATE_V, POOL_DEVICE, "resident_moment2", "their second moments"},
};
enum { N_GROUPS = sizeof GROUPS / sizeof *GROUPS };

void emit_fields(Emitter *e)
{
    const StepList *s = e->steps;
    for (int g = 0; g < N_GROUPS; g++) {
        int n = 0;
        for (int i = 0; i < s->n_buffer; i++)
            if (s->buffer[i].kind == GROUPS[g].kind && s->buffer[i].pool == GROUPS[g].pool)
                n++;
        if (!n)
            continue;
        text_add(&e->text, "    struct { /* %s */\n", GROUPS[g].comment);
        for (int i = 0; i < s->n_buffer; i++)
            if (s->buffer[i].kind == GROUPS[g].kind && s->buffer[i].pool == GROUPS[g].pool)
                text_add(&e->text, "        void *%s;\n", e->names.buffer[i]);
        text_add(&e->text, "    } %s;\n", GROUPS[g].field);
    }
    text_add(&e->text, "    double *partials[2]; /* sums of squares of each gradient, in parameter order, of even and odd steps */\n"
                       "    double *norm[2];  /* {gradient norm, clip scale} of even and odd steps */\n"
                       "    scalar *loss[2];\n");
}

static void emit_device_buffer(Emitter *e, int buffer, const Place *place)
{
    Text *t = &e->text;
    const Buffer *b = &e->steps->buffer[buffer];
    char size[32];
    if (place->n_piece == 1) {
        text_add(t, "    %s = ferry_pool_at(s->pool, %" PRId64 "); /* %s */\n", emit_buffer(e, buffer),
                 place->piece[0].offset_bytes, size_print(size, b->bytes));
        return;
    }
    text_add(t, "    TRY(ferry_pool_stitch(s->pool, /* %s */\n        (const ferry_piece[]){", size_print(size, b->bytes));
    for (int i = 0; i < place->n_piece; i++)
        text_add(t, "%s{%" PRId64 ", %" PRId64 "}", i == 0 ? "" : i % 4 ? ", " : ",\n                              ",
                 place->piece[i].offset_bytes, place->piece[i].bytes);
    text_add(t, "},\n        %d, &%s));\n", place->n_piece, emit_buffer(e, buffer));
}

static int64_t partials_bytes(const StepList *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->n_buffer; i++)
        if (s->buffer[i].kind == BUFFER_PARTIALS || s->buffer[i].kind == BUFFER_PARTIALS_GPU)
            bytes += s->buffer[i].bytes;
    return bytes;
}

Status emit_map(Emitter *e)
{
    Text *t = &e->text;
    const StepList *s = e->steps;
    const Layout *layout = &e->plan->layout;
    char size[32];

    text_add(t, "/* Device memory: one pool of %s; buffers whose lives do not meet share its bytes. A buffer that found no\n"
                " * single free range is stitched from several into one virtual range. */\n"
                "static ferry_status map_device(schedule *s)\n{\n",
             size_print(size, layout->reserved_bytes));
    text_add(t, "    TRY(ferry_pool_open(s->device, SCHEDULE_POOL_BYTES, &s->pool));\n");
    int device = 0;
    for (int i = 0; i < s->n_buffer; i++) {
        if (s->buffer[i].pool != POOL_DEVICE)
            continue;
        if (device >= layout->n_place)
            return diag_fail(e->diag, ST_FAILED, "codegen: buffer %s has no place", s->buffer[i].name);
        emit_device_buffer(e, i, &layout->place[device++]);
    }
    text_add(t, "    return FERRY_OK;\n}\n\n");

    text_add(t, "/* Pinned host memory: %s. */\nstatic ferry_status map_host(schedule *s)\n{\n    void *p = NULL;\n",
             size_print(size, e->plan->host_bytes));
    for (int i = 0; i < s->n_buffer; i++) {
        const Buffer *b = &s->buffer[i];
        if (b->pool != POOL_HOST)
            continue;
        if (b->kind == BUFFER_NORM || b->kind == BUFFER_LOSS) {
            for (int k = 0; k < 2; k++)
                text_add(t, "    TRY(pinned(s, %" PRId64 ", &p));\n    s->%s[%d] = p;\n", b->bytes,
                         e->names.buffer[i], k);
        } else if (b->kind == BUFFER_PARTIALS) {
            /* those that the GPU sums lie among them */
            for (int k = 0; k < 2; k++)
                text_add(t, "    TRY(pinned(s, %" PRId64 ", &p));\n    s->partials[%d] = p;\n", partials_bytes(s), k);
        } else if (b->kind == BUFFER_PARTIALS_GPU) {
            continue;
        } else {
            text_add(t, "    TRY(pinned(s, %" PRId64 ", &%s));\n", b->bytes, emit_buffer(e, i));
        }
    }
    text_add(t, "    (void)p;\n    return FERRY_OK;\n}\n\n");

    int n_constant = 0;
    for (int i = 0; i < s->n_buffer; i++)
        if (s->buffer[i].kind == BUFFER_CONST)
            n_constant++;
    text_add(t, "/* Constants of the model, from DIR/constants.safetensors. */\n"
                "static ferry_status load_constants(schedule *s, const char *dir)\n{\n");
    if (!n_constant) {
        text_add(t, "    (void)s;\n    (void)dir;\n    return FERRY_OK;\n}\n\n");
        return ST_OK;
    }
    text_add(t, "    ferry_weights *file = NULL;\n"
                "    char path[4096];\n"
                "    snprintf(path, sizeof path, \"%%s/constants.safetensors\", dir);\n"
                "    TRY(ferry_weights_open(path, &file));\n"
                "    ferry_status status = FERRY_OK;\n"
                "    const struct {\n        const char *name;\n        void *to;\n        int64_t bytes;\n    } list[] = {\n");
    for (int i = 0; i < s->n_buffer; i++)
        if (s->buffer[i].kind == BUFFER_CONST) {
            text_add(t, "        {");
            c_text_string(t, e->graph->tensor.at[s->buffer[i].tensor].name);
            text_add(t, ", %s, %" PRId64 "},\n", emit_buffer(e, i), s->buffer[i].bytes);
        }
    text_add(t, "    };\n"
                "    for (size_t i = 0; i < sizeof list / sizeof *list && status == FERRY_OK; i++)\n"
                "        status = constant(s, file, list[i].name, list[i].to, list[i].bytes);\n"
                "    ferry_weights_close(file);\n"
                "    return status;\n}\n\n");
    return ST_OK;
}
