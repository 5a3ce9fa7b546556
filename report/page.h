/* page.h - inside report/: the sections of the page, and the spans that its timeline shows. */
#ifndef FERRY_REPORT_PAGE_H
#define FERRY_REPORT_PAGE_H

#include "report/report.h"

/* Pictures are PICTURE_WIDTH units wide for the whole window of time, whatever that is. */
enum { PICTURE_WIDTH = 100000 };

/* The window of the pictures: two periods from the first kernel of an iteration on (its staging and first loads run
 * beside the iteration before), or two whole iterations when the pattern does not repeat with them. The iteration on
 * which Timeline.start_ns is based is the second one. */
typedef struct Window {
    int64_t zero_ns;   /* of the window on the clock of Timeline */
    int64_t length_ns; /* at least 1 */
    bool wraps;        /* the iterations before and after are the same two, shifted by length_ns */
} Window;
Window page_window(const Report *r);

/* Iterations 0 and 1 are in the window; -1 and 2 are shown where they reach into it. */
enum { ITERATION_FIRST = -1, ITERATION_LAST = 2 };
/* Times in the window, not clipped; false when this iteration cannot be shown. */
bool page_step_times(const Report *r, const Window *w, int iteration, int step, int64_t *start_ns, int64_t *end_ns);

void page_timeline(const Report *r, const Window *w, Text *to);
Status page_memory(Diag *d, const Report *r, const Window *w, Text *to);
void page_algorithms(const Report *r, Text *to);
Status page_layers(Diag *d, const Report *r, Text *to);

/* Of a report with a run. */
void page_measured(const Report *r, Text *to);
/* Start and end of a part in one step, from the start of the step's first compute part. */
void page_part_times(const Report *r, int part, bool measured, int64_t *start_ns, int64_t *end_ns);

/* The axis of time under a picture: labels at nice distances. */
void page_axis(const Window *w, Text *to);
double page_x(const Window *w, int64_t ns);

/* Device kinds in the order in which they are stacked. */
int page_memory_kinds(const BufferKind **kinds);
const char *page_kind_label(BufferKind k);

#endif
