/* The team: each part is done once, by whoever, also when the threads sleep in between, when two callers meet, and when there is
 * nothing to do. */
#include "scratch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/workers.h"

enum { MOST = 300 };

typedef struct job {
    ferryi_workers *team;
    atomic_int done[MOST];
    int64_t result[MOST]; /* written by one thread, read by the caller */
} job;

static void do_part(void *arg, int64_t part)
{
    job *j = arg;
    atomic_fetch_add(&j->done[part], 1);
    j->result[part] = part * part;
}

static void run_and_check(job *j, int parts)
{
    for (int i = 0; i < MOST; i++) {
        atomic_store(&j->done[i], 0);
        j->result[i] = -1;
    }
    ferryi_workers_run(j->team, parts, do_part, j);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(atomic_load(&j->done[i]), i < parts);
        assert_int_equal(j->result[i], i < parts ? (int64_t)i * i : -1);
    }
}

static void each_part_once(void **state)
{
    (void)state;
    job *j = calloc(1, sizeof(*j));
    assert_int_equal(ferryi_workers_open(&j->team), FERRY_OK);
    assert_true(ferryi_workers_count(j->team) >= 1);
    for (int round = 0; round < 200; round++) {
        run_and_check(j, round * 7 % MOST);
        if (round % 50 == 0) { /* they fall asleep */
            nanosleep(&(struct timespec){0, 2000000}, NULL);
        }
    }
    ferryi_workers_close(j->team);
    j->team = NULL; /* without a team the caller does it all */
    run_and_check(j, MOST);
    free(j);
}

static void *call_often(void *arg)
{
    for (int round = 0; round < 200; round++) {
        run_and_check(arg, 64);
    }
    return NULL;
}

static void two_callers(void **state)
{
    (void)state;
    job *j[2];
    pthread_t thread;
    ferryi_workers *team;
    assert_int_equal(ferryi_workers_open(&team), FERRY_OK);
    for (int i = 0; i < 2; i++) {
        j[i] = calloc(1, sizeof(*j[i]));
        j[i]->team = team;
    }
    assert_int_equal(pthread_create(&thread, NULL, call_often, j[0]), 0);
    call_often(j[1]);
    pthread_join(thread, NULL);
    ferryi_workers_close(team);
    free(j[0]);
    free(j[1]);
}

static void closes_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        ferryi_workers *team;
        assert_int_equal(ferryi_workers_open(&team), FERRY_OK);
        ferryi_workers_close(team);
    }
    ferryi_workers_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_once),
        cmocka_unit_test(two_callers),
        cmocka_unit_test(closes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
