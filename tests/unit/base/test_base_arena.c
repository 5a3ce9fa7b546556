/* Arenas, heap memory with failure on demand, growing arrays. */
#include "base_test.h"

#include <pthread.h>

static void memory_is_zeroed_aligned_and_apart(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 16, 17, 100, 4000, 16384, 16385, 70000, 1 << 20, 9 << 20, 3};
    enum { N = sizeof sizes / sizeof sizes[0], ROUNDS = 20 };
    Arena *a = arena_open();
    assert_non_null(a);
    unsigned char *at[N * ROUNDS];
    for (int i = 0; i < N * ROUNDS; i++) {
        size_t size = sizes[i % N];
        at[i] = arena_alloc(a, size, 1);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % 16, 0);
        for (size_t k = 0; k < size; k++)
            if (at[i][k])
                fail_msg("byte %zu of allocation %d is not zero", k, i);
        memset(at[i], i & 0xff, size);
    }
    /* No later allocation wrote into an earlier one. */
    for (int i = 0; i < N * ROUNDS; i++)
        for (size_t k = 0; k < sizes[i % N]; k++)
            if (at[i][k] != (i & 0xff))
                fail_msg("byte %zu of allocation %d changed", k, i);
    arena_close(a);
    arena_close(NULL);
}

static void products_that_overflow_are_refused(void **state)
{
    (void)state;
    Arena *a = arena_open();
    assert_null(arena_alloc(a, SIZE_MAX, 2));
    assert_null(arena_alloc(a, SIZE_MAX / 2 + 1, 2));
    assert_null(arena_alloc(a, ((size_t)1 << 32) + 1, (size_t)1 << 32));
    assert_null(arena_alloc(a, SIZE_MAX, 1));
    assert_null(ARENA_NEW(a, int64_t, (size_t)-1));
    assert_non_null(arena_alloc(a, 0, SIZE_MAX));
    assert_non_null(arena_alloc(a, SIZE_MAX, 0));
    assert_null(base_alloc(SIZE_MAX));
    arena_close(a);
}

static void strings(void **state)
{
    (void)state;
    Arena *a = arena_open();
    char text[] = "wte.weight";
    char *copy = arena_strdup(a, text);
    text[0] = 'x';
    assert_string_equal(copy, "wte.weight");
    assert_string_equal(arena_strdup(a, ""), "");
    assert_string_equal(arena_printf(a, "h.%d.%s", 11, "attn"), "h.11.attn");
    char *wide = arena_printf(a, "%0100000d", 1);
    assert_int_equal(strlen(wide), 100000);
    assert_int_equal(wide[99999], '1');
    arena_close(a);
}

static void the_nth_allocation_and_all_later_fail(void **state)
{
    (void)state;
    long before = base_alloc_count();
    base_fail_alloc(3);
    void *first = base_alloc(10), *second = base_alloc(10);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(base_alloc(10));
    assert_null(base_alloc(10));
    assert_null(base_realloc(first, 1000));
    base_fail_alloc(0);
    first = base_realloc(first, 1000);
    assert_non_null(first);
    assert_int_equal(base_alloc_count() - before, 6);
    base_free(first);
    base_free(second);

    base_fail_alloc(1);
    assert_null(arena_open());
    base_fail_alloc(2);
    Arena *a = arena_open();
    assert_non_null(a);
    assert_null(arena_alloc(a, 1, 1));
    assert_null(arena_alloc(a, 1, 1 << 20));
    assert_null(arena_strdup(a, "x"));
    assert_null(arena_printf(a, "%d", 1));
    base_fail_alloc(0);
    assert_non_null(arena_alloc(a, 1, 1));
    arena_close(a);
}

enum { THREADS = 4, EACH = 5000, ALLOWED = 7777 };

static void *allocate_many(void *got)
{
    for (int i = 0; i < EACH; i++) {
        void *p = base_alloc(1);
        *(int *)got += p != NULL;
        base_free(p);
    }
    return NULL;
}

static void threads_share_the_count(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    int got[THREADS] = {0}, sum = 0;
    base_fail_alloc(ALLOWED + 1);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, allocate_many, &got[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        sum += got[i];
    }
    base_fail_alloc(0);
    assert_int_equal(sum, ALLOWED);
}

static void vectors_grow(void **state)
{
    (void)state;
    VEC(int64_t) v = {0};
    for (int64_t i = 0; i < 10000; i++) {
        int64_t *e = VEC_PUSH(&v);
        assert_non_null(e);
        *e = i * i;
    }
    assert_int_equal(v.count, 10000);
    assert_true(v.capacity >= v.count);
    for (int64_t i = 0; i < 10000; i++)
        assert_int_equal(v.at[i], i * i);
    /* A push that fails keeps what is there. */
    base_fail_alloc(1);
    while (v.count < v.capacity)
        assert_non_null(VEC_PUSH(&v));
    int count = v.count;
    assert_null(VEC_PUSH(&v));
    base_fail_alloc(0);
    assert_int_equal(v.count, count);
    assert_int_equal(v.at[9999], 9999 * 9999);
    VEC_FREE(&v);
    assert_null(v.at);
    assert_int_equal(v.count, 0);

    void *at = NULL;
    int capacity = 0;
    assert_false(vec_grow_(&at, &capacity, INT32_MAX, 8));
    assert_false(vec_grow_(&at, &capacity, 1000, SIZE_MAX / 1000));
    assert_null(at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_aligned_and_apart),
        cmocka_unit_test(products_that_overflow_are_refused),
        cmocka_unit_test(strings),
        cmocka_unit_test(threads_share_the_count),
        cmocka_unit_test(the_nth_allocation_and_all_later_fail),
        cmocka_unit_test(vectors_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
