/* cross_solve.c - hands a mixed integer program to GLPK's branch and bound, in a child process.
 *
 * GLPK aborts when it finds its data wrong, can cycle, and can use any amount of memory: none of that may take the
 * caller with it. The child has limits on memory and processor time, reports through a pipe, and its death is an answer
 * ("gave up"). The error hook ends it quietly. */
#include "planner/cross_solve.h"

#include <errno.h>
#include <glpk.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMIT_MEMORY 0 /* sanitizers reserve terabytes */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LIMIT_MEMORY 0
#endif
#endif
#ifndef LIMIT_MEMORY
#define LIMIT_MEMORY 1
#endif

Status cross_open(Diag *d, CrossProblem *p, double most)
{
    *p = (CrossProblem){.most = most};
    if (!isfinite(most))
        return diag_fail(d, ST_FAILED, "the cross-check's largest period is not a number");
    p->period = cross_column(p, CROSS_TIME);
    return p->failed ? diag_oom(d) : ST_OK;
}

void cross_close(CrossProblem *p)
{
    VEC_FREE(&p->column);
    VEC_FREE(&p->entry);
    VEC_FREE(&p->row);
}

int cross_column(CrossProblem *p, CrossColumn kind)
{
    CrossColumn *c = VEC_PUSH(&p->column);
    if (c)
        *c = kind;
    p->failed = p->failed || !c;
    return p->n_column++;
}

Status cross_row(Diag *d, CrossProblem *p, double *dense, double at_least, bool equal)
{
    CrossRow r = {.first = p->entry.count, .at_least = at_least, .equal = equal};
    bool finite = isfinite(at_least);
    for (int c = 0; c < p->n_column; c++) {
        double value = dense[c];
        dense[c] = 0;
        finite = finite && isfinite(value);
        if (value == 0)
            continue;
        CrossEntry *e = VEC_PUSH(&p->entry);
        if (!e)
            return diag_oom(d);
        *e = (CrossEntry){c, value};
        r.n++;
    }
    if (!finite)
        return diag_fail(d, ST_FAILED, "the cross-check has a coefficient that is not a finite number");
    CrossRow *row = VEC_PUSH(&p->row);
    if (!row)
        return diag_oom(d);
    *row = r;
    return ST_OK;
}

/* ---- in the child
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct Report {
    int32_t done; /* the child got to its end */
    int32_t closed, found;
} Report;

/* It announces its errors on standard output, which is the caller's. */
static int swallow(void *info, const char *text)
{
    (void)info;
    (void)text;
    return 1;
}

/* Without the handlers that the parent has registered. */
static _Noreturn void end_child(int code)
{
#ifdef FERRY_COVERAGE
    void __gcov_dump(void); /* _exit would lose what this process counted */
    __gcov_dump();
#endif
    _exit(code);
}

static void leave(void *info)
{
    (void)info;
    end_child(3);
}

typedef struct Count {
    int nodes, most;
    bool stopped;
} Count;

static void watch(glp_tree *tree, void *info)
{
    Count *c = info;
    if (glp_ios_reason(tree) == GLP_ISELECT && ++c->nodes > c->most) {
        c->stopped = true;
        glp_ios_terminate(tree);
    }
}

static bool write_all(int fd, const void *data, size_t size)
{
    for (const char *at = data; size > 0;) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static glp_prob *make_problem(const CrossProblem *p)
{
    glp_prob *lp = glp_create_prob();
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_cols(lp, p->n_column);
    for (int c = 0; c < p->n_column; c++) {
        switch (p->column.at[c]) {
        case CROSS_BINARY:
            glp_set_col_kind(lp, c + 1, GLP_BV);
            break;
        case CROSS_ONE:
        case CROSS_ZERO: {
            double value = p->column.at[c] == CROSS_ONE;
            glp_set_col_bnds(lp, c + 1, GLP_FX, value, value);
            break;
        }
        case CROSS_PART:
            glp_set_col_bnds(lp, c + 1, GLP_DB, 0, 1);
            break;
        case CROSS_TIME:
            glp_set_col_bnds(lp, c + 1, GLP_LO, 0, 0);
            break;
        }
    }
    glp_set_obj_coef(lp, p->period + 1, 1);
    glp_set_col_bnds(lp, p->period + 1, GLP_DB, 0, p->most);
    int *index = base_alloc((size_t)(p->n_column + 1) * sizeof *index);
    double *value = base_alloc((size_t)(p->n_column + 1) * sizeof *value);
    if (!index || !value)
        end_child(4);
    glp_add_rows(lp, p->row.count);
    for (int r = 0; r < p->row.count; r++) {
        const CrossRow *row = &p->row.at[r];
        for (int i = 0; i < row->n; i++) {
            index[i + 1] = p->entry.at[row->first + i].column + 1;
            value[i + 1] = p->entry.at[row->first + i].value;
        }
        glp_set_mat_row(lp, r + 1, row->n, index, value);
        glp_set_row_bnds(lp, r + 1, row->equal ? GLP_FX : GLP_LO, row->at_least, row->at_least);
    }
    base_free(index);
    base_free(value);
    return lp;
}

static void child(const CrossProblem *p, const CrossLimits *limits, int way, int fd)
{
    struct rlimit cpu = {(rlim_t)limits->seconds, (rlim_t)limits->seconds + 1}, core = {0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &core);
    if (LIMIT_MEMORY) {
        struct rlimit memory = {(rlim_t)limits->bytes, (rlim_t)limits->bytes};
        setrlimit(RLIMIT_AS, &memory);
    }
    glp_error_hook(leave, NULL);
    glp_term_out(GLP_OFF);
    glp_term_hook(swallow, NULL);
    glp_prob *lp = make_problem(p);
    glp_scale_prob(lp, way == 2 ? GLP_SF_GM | GLP_SF_EQ | GLP_SF_2N : GLP_SF_AUTO);
    glp_smcp simplex;
    glp_init_smcp(&simplex);
    simplex.msg_lev = GLP_MSG_OFF;
    simplex.meth = GLP_DUALP;
    Report report = {.done = 1};
    bool *value = base_alloc((size_t)p->n_column + 1);
    if (!value)
        end_child(4);
    int code = glp_simplex(lp, &simplex);
    int status = code == 0 ? glp_get_status(lp) : GLP_UNDEF;
    if (status == GLP_NOFEAS || code == GLP_ENOPFS) {
        report.closed = 1;
    } else if (status == GLP_OPT) {
        Count count = {.most = limits->nodes};
        glp_iocp o;
        glp_init_iocp(&o);
        o.msg_lev = GLP_MSG_OFF;
        o.br_tech = GLP_BR_DTH;
        o.bt_tech = GLP_BT_BLB;
        o.tol_int = 1e-9;
        o.tol_obj = 1e-10;
        o.presolve = way == 1 ? GLP_ON : GLP_OFF;
        o.cb_func = watch;
        o.cb_info = &count;
        code = glp_intopt(lp, &o);
        status = glp_mip_status(lp);
        report.closed = code == 0 && !count.stopped && (status == GLP_OPT || status == GLP_NOFEAS);
        report.found = status == GLP_OPT || status == GLP_FEAS;
        for (int c = 0; report.found && c < p->n_column; c++)
            value[c] = glp_mip_col_val(lp, c + 1) > 0.5;
    }
    if (!write_all(fd, &report, sizeof report) || !write_all(fd, value, (size_t)p->n_column))
        end_child(5);
    end_child(0);
}

/* ---- in the parent
 * -------------------------------------------------------------------------------------------------------------- */

static bool read_all(int fd, void *data, size_t size)
{
    for (char *at = data; size > 0;) {
        ssize_t n = read(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

Status cross_solve(Diag *d, const CrossProblem *p, const CrossLimits *limits, int way, CrossAnswer *out)
{
    *out = (CrossAnswer){0};
    int fd[2];
    bool *value = base_alloc((size_t)p->n_column + 1);
    if (!value)
        return diag_oom(d);
    if (pipe(fd) != 0) {
        base_free(value);
        return diag_fail(d, ST_FAILED, "--cross-check: no pipe: %s", strerror(errno));
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        base_free(value);
        return diag_fail(d, ST_FAILED, "--cross-check: no child process: %s", strerror(errno));
    }
    if (pid == 0) {
        close(fd[0]);
        child(p, limits, way, fd[1]);
    }
    close(fd[1]);
    Report report = {0};
    bool whole = read_all(fd[0], &report, sizeof report) && read_all(fd[0], value, (size_t)p->n_column);
    close(fd[0]);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!whole || !report.done || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        out->why = by == SIGXCPU   ? "the solver's time was used up"
                   : by == SIGKILL ? "the solver was killed"
                   : by != 0       ? "the solver crashed"
                                   : "the solver gave up: it found its data wrong, or needed more memory than it may";
        out->again = by == 0;
        base_free(value);
        return ST_OK;
    }
    out->closed = report.closed;
    out->why = report.closed ? NULL : "the solver's nodes were used up";
    if (report.found)
        out->value = value;
    else
        base_free(value);
    return ST_OK;
}
