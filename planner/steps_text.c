/* steps_text.c - steps for people: labels in messages, and the dump. */
#include "planner/steps.h"

const char *step_kind_name(StepKind k)
{
    static const char *const name[] = {"stage", "load_input", "load", "kernel", "store_loss",
                                       "store", "sqnorm",     "norm", "adamw",  "collect"};
    return name[k];
}

const char *step_stream_name(StepStream t)
{
    static const char *const name[STREAM_COUNT] = {"host", "compute", "load", "store", "update"};
    return name[t];
}

const char *buffer_kind_name(BufferKind k)
{
    static const char *const name[BUFFER_KIND_COUNT] = {"value",    "const", "input",     "staging", "param",   "param_bp",
                                                        "master",   "rounded", "grad", "host_grad", "state_m",
                                                        "state_v",  "statistic", "partials", "partials_gpu", "norm", "loss"};
    return name[k];
}

const char *step_label(const StepList *s, int step, char out[STEP_LABEL_BYTES])
{
    const Step *x = &s->step[step];
    const char *kind = step_kind_name(x->kind);
    if (x->kind == STEP_KERNEL && s->graph && x->node >= 0) {
        const Node *n = &s->graph->node.at[x->node];
        snprintf(out, STEP_LABEL_BYTES, "%s %d %.100s (%s%s)", kind, step, n->name, ferry_op_get(n->call.op)->name,
                 n->phase == PHASE_RP ? " again" : "");
    } else if (x->unit >= 0 && s->graph) {
        snprintf(out, STEP_LABEL_BYTES, "%s %d %.100s%s", kind, step, s->graph->unit[x->unit].name,
                 x->copy == 2 ? " again" : "");
    } else {
        snprintf(out, STEP_LABEL_BYTES, "%s %d", kind, step);
    }
    return out;
}

/* One line a buffer and a step:
 *   step 12 compute kernel 12 wte (embedding) after 3, 40 of last iteration: reads input:ids; writes act:tokens; 1250
 * ns */
void steps_print(const StepList *s, Text *to)
{
    static const char *const link[LINK_CLASS_COUNT] = {"dha_read", "dha_write", "h2d", "d2h", "update"};
    char label[STEP_LABEL_BYTES];
    text_add(to, "steps: %d steps, %d device buffers, %d host buffers\n", s->n_step, s->n_device,
             s->n_buffer - s->n_device);
    for (int i = 0; i < s->n_buffer; i++) {
        const Buffer *b = &s->buffer[i];
        text_add(to, "buffer %s %s %s, %lld bytes%s%s\n", b->name, b->pool == POOL_DEVICE ? "device" : "host",
                 buffer_kind_name(b->kind), (long long)b->bytes, b->copies == 2 ? ", two copies" : "",
                 b->preset ? ", preset" : "");
    }
    for (int i = 0; i < s->n_step; i++) {
        const Step *x = &s->step[i];
        text_add(to, "step %d %s: %s", i, step_stream_name(x->stream), step_label(s, i, label));
        if (x->segment >= 0)
            text_add(to, ", %s segment %d", phase_name(x->phase), x->segment);
        for (int k = 0; k < x->n_wait; k++)
            text_add(to, "%s%d%s", k == 0 ? "; waits for " : ", ", x->wait[k].step,
                     x->wait[k].distance ? " of the last iteration" : "");
        for (int k = 0; k < x->n_access; k++) {
            const Access *c = &x->access[k];
            text_add(to, "%s%s %s%s", k == 0 ? "; " : ", ",
                     c->read && c->write ? "updates"
                     : c->write          ? "writes"
                                         : "reads",
                     s->buffer[c->buffer].name, c->lag ? " (last iteration's)" : "");
        }
        if (x->duration_ns > 0)
            text_add(to, "; %lld ns", (long long)x->duration_ns);
        for (int c = 0; c < LINK_CLASS_COUNT; c++)
            if (x->link & (1u << c))
                text_add(to, " %s", link[c]);
        text_add(to, "\n");
    }
}
