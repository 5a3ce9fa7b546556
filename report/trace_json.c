/* trace_json.c - the timeline for Perfetto and chrome://tracing.
 *
 * needs: Report   fills: text   keeps: all
 * Two consecutive iterations. A complete event ("X") a step, a thread a stream; a flow from the end of each step to the
 * start of each that waits for it, when both are there: flows bind to the slice around their time, so that they leave a
 * nanosecond before the end. Times are microseconds with the nanoseconds as decimals. */
#include "report/page.h"

#include <inttypes.h>

static void add_time(Text *to, const char *key, int64_t ns)
{
    text_add(to, ", \"%s\": %" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static void add_names(Text *to)
{
    text_add(to, "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"tid\": 0, \"args\": {\"name\": \"two "
                 "training steps\"}}");
    for (int t = 0; t < STREAM_COUNT; t++) {
        text_add(to,
                 ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
                 t + 1, step_stream_name((StepStream)t));
        text_add(to,
                 ",\n{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": 1, \"tid\": %d, \"args\": "
                 "{\"sort_index\": %d}}",
                 t + 1, t);
    }
}

static void add_step(const Report *r, int i, int iteration, int64_t start, int64_t end, Text *to)
{
    const StepList *s = r->steps;
    const Step *x = &s->step[i];
    char label[STEP_LABEL_BYTES];
    bool read = false, write = false;
    text_add(to, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"name\": ", (int)x->stream + 1);
    text_add_quoted(to, step_label(s, i, label));
    text_add(to, ", \"cat\": \"%s\"",
             x->segment < 0 ? step_kind_name(x->kind) : kernel_part_name(x->phase));
    add_time(to, "ts", start);
    add_time(to, "dur", end - start);
    text_add(to, ", \"args\": {\"step\": %d, \"iteration\": %d, \"alone_ns\": %" PRId64, i, iteration, x->duration_ns);
    if (x->kind == STEP_KERNEL && steps_is_dha(s, x, &read, &write))
        text_add(to, ", \"dha\": \"%s\"", read && write ? "reads and writes" : read ? "reads" : "writes");
    text_add(to, "}}");
}

static void add_flows(const Report *r, const Window *w, int i, int iteration, int64_t start, int *id, Text *to)
{
    const StepList *s = r->steps;
    for (int k = 0; k < s->step[i].n_wait; k++) {
        const Wait *wait = &s->step[i].wait[k];
        int64_t from, end;
        if (iteration - wait->distance < 0 ||
            !page_step_times(r, w, iteration - wait->distance, wait->step, &from, &end))
            continue;
        ++*id;
        text_add(to, ",\n{\"ph\": \"s\", \"cat\": \"wait\", \"name\": \"wait\", \"id\": %d, \"pid\": 1, \"tid\": %d",
                 *id, (int)s->step[wait->step].stream + 1);
        add_time(to, "ts", end > from ? end - 1 : end);
        text_add(to,
                 "},\n{\"ph\": \"f\", \"bp\": \"e\", \"cat\": \"wait\", \"name\": \"wait\", \"id\": %d, \"pid\": 1, "
                 "\"tid\": %d",
                 *id, (int)s->step[i].stream + 1);
        add_time(to, "ts", start);
        text_add(to, "}");
    }
}

static void add_memory(const Report *r, int i, int64_t start, Text *to)
{
    const BufferKind *kinds;
    int n = page_memory_kinds(&kinds);
    text_add(to, ",\n{\"ph\": \"C\", \"pid\": 1, \"name\": \"device memory\"");
    add_time(to, "ts", start);
    text_add(to, ", \"args\": {");
    for (int k = 0; k < n; k++)
        text_add(to, "%s\"%s\": %" PRId64, k ? ", " : "", page_kind_label(kinds[k]),
                 r->live[(size_t)kinds[k] * (size_t)r->steps->n_step + (size_t)i]);
    text_add(to, "}}");
}

/* The recorded step as a process of its own, its first kernel where the second predicted step has it. */
static void add_measured(const Report *r, const Window *w, Text *to)
{
    enum { PROCESS = 2, FIRST_THREAD = STREAM_COUNT + 1 };
    int64_t zero = -1, end;
    for (int i = 0; i < r->parts.n && zero < 0; i++)
        if (r->parts.part[i].stream == STREAM_COMPUTE)
            page_step_times(r, w, 1, r->parts.part[i].first, &zero, &end);
    text_add(
        to,
        ",\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"tid\": 0, \"args\": {\"name\": \"measured\"}}",
        PROCESS);
    for (int t = STREAM_COMPUTE; t < STREAM_COUNT; t++)
        text_add(
            to, ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
            PROCESS, FIRST_THREAD + t, step_stream_name((StepStream)t));
    for (int i = 0; i < r->parts.n; i++) {
        const Part *p = &r->parts.part[i];
        const RunPart *m = &r->run->part[i];
        int64_t start = zero + m->start_ns;
        text_add(to, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"cat\": \"%s\", \"name\": ", PROCESS,
                 FIRST_THREAD + (int)p->stream, p->what);
        text_add_quoted(to, p->of[0] ? p->of : p->what);
        add_time(to, "ts", start < 0 ? 0 : start);
        add_time(to, "dur", m->median_ns);
        int64_t from, until;
        page_part_times(r, i, false, &from, &until);
        text_add(to, ", \"args\": {\"predicted_ns\": %" PRId64 ", \"min_ns\": %" PRId64 ", \"max_ns\": %" PRId64 "}}",
                 until - from, m->min_ns, m->max_ns);
    }
}

Status report_trace(Diag *d, const Report *r, Text *to)
{
    Window w = page_window(r);
    for (int i = 0; i < r->steps->n_step; i++) /* whole iterations: from the first step of all */
        w.zero_ns = r->time.previous_start_ns[i] < w.zero_ns ? r->time.previous_start_ns[i] : w.zero_ns;
    const StepList *s = r->steps;
    int id = 0;
    text_add(to, "\"displayTimeUnit\": \"ns\",\n\"traceEvents\": [\n");
    add_names(to);
    for (int iteration = 0; iteration < 2; iteration++)
        for (int i = 0; i < s->n_step; i++) {
            int64_t start, end;
            page_step_times(r, &w, iteration, i, &start, &end);
            add_step(r, i, iteration, start, end, to);
            add_flows(r, &w, i, iteration, start, &id, to);
            if (s->step[i].stream == STREAM_COMPUTE)
                add_memory(r, i, start, to);
        }
    if (r->run)
        add_measured(r, &w, to);
    text_add(to, "\n]}\n");
    return to->failed ? diag_oom(d) : ST_OK;
}
