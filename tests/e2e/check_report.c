/* check_report REPORT.html TRACE.json STEPS PERIOD_NS [PARTS] - the page is well formed and alone, the trace holds STEPS steps
 * twice, PERIOD_NS apart, each stream in order, its flows in pairs; PARTS measured spans. */
#include <stdbool.h>
#include <stdio.h>

#include "tests/html_check.h"
#include "tests/trace_check.h"

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 64 << 20);
    if (f && text && fread(text, 1, (64 << 20) - 1, f) > 0) {
        fclose(f);
        return text;
    }
    fprintf(stderr, "check_report: cannot read %s\n", path);
    exit(1);
}

/* Equal steps of the two iterations stand one period apart, to a nanosecond of rounding. */
static int check_period(const TraceCheck *c, long long period)
{
    for (int i = 0; i < c->n_span; i++)
        for (int k = i + 1; k < c->n_span; k++) {
            const TraceSpan *a = &c->span[i], *b = &c->span[k];
            if (a->step == b->step && a->iteration == 0 && b->iteration == 1 &&
                llabs(b->start - a->start - period) > 1) {
                fprintf(stderr, "check_report: step %d is repeated after %lld ns, not %lld\n", a->step,
                        b->start - a->start, period);
                return 1;
            }
        }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6)
        return 2;
    static HtmlCheck html;
    char *page = read_all(argv[1]);
    if (!html_check(&html, page)) {
        fprintf(stderr, "check_report: %s: %s\n", argv[1], html.why);
        return 1;
    }
    free(page);
    json_error_t error;
    json_t *json = json_load_file(argv[2], JSON_REJECT_DUPLICATES, &error);
    TraceCheck trace;
    if (!json || !trace_check(&trace, json)) {
        fprintf(stderr, "check_report: %s: %s\n", argv[2], json ? trace.why : error.text);
        return 1;
    }
    int bad = check_period(&trace, atoll(argv[4]));
    if (trace.n_span != 2 * atoi(argv[3]) || trace.steps != atoi(argv[3]) || trace.n_flow == 0 || trace.n_named != (argc == 6 ? 9 : 5) || trace.n_measured != (argc == 6 ? atoi(argv[5]) : 0)) {
        fprintf(stderr, "check_report: %d spans of %d steps, %d flows, %d streams, %d measured\n", trace.n_span,
                trace.steps, trace.n_flow, trace.n_named, trace.n_measured);
        bad = 1;
    }
    printf("%d elements; %d spans, %d flows, %d counters\n", html.elements, trace.n_span, trace.n_flow,
           trace.n_counter);
    trace_close(&trace);
    json_decref(json);
    return bad;
}
