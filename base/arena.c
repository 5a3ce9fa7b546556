/* arena.c - heap memory with failure on demand, and the arenas on top of it.
 *
 * An arena is a list of chunks. An allocation takes the next aligned bytes of the newest chunk; when they do not fit, a
 * new chunk is put in front, twice as large as the one before up to a limit, so that a stage of any size makes few
 * calls to the heap. A request too large for a chunk gets one of its own. Nothing is given back before arena_close. */
#include "base/base.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Under AddressSanitizer the bytes of a chunk that nobody owns are poisoned, and each allocation is followed by a gap,
 * so that running over the end of one is found although the heap sees the chunk only. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
enum { GAP = 16 };
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
enum { GAP = 0 };
#endif

enum { ALIGN = 16, FIRST_CHUNK = 64 << 10, LARGEST_CHUNK = 8 << 20 };

/* ---- heap
 * ------------------------------------------------------------------------------------------------------------ */

/* Allocations that still succeed, plus one; 0: all succeed; 1: none does. One word, so that threads that allocate at
 * the same time share the count down without a lock. */
static atomic_long fail_countdown;
static atomic_long allocations;

static bool may_allocate(size_t bytes)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    long left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left > 1 && !atomic_compare_exchange_weak_explicit(&fail_countdown, &left, left - 1, memory_order_relaxed,
                                                              memory_order_relaxed))
        ;
    return left != 1 && bytes <= PTRDIFF_MAX;
}

void *base_alloc(size_t bytes)
{
    return may_allocate(bytes) ? calloc(1, bytes ? bytes : 1) : NULL;
}

void *base_realloc(void *p, size_t bytes)
{
    return may_allocate(bytes) ? realloc(p, bytes ? bytes : 1) : NULL;
}

void base_free(void *p)
{
    free(p);
}

void base_fail_alloc(long n)
{
    atomic_store(&fail_countdown, n > 0 ? n : 0);
}

long base_alloc_count(void)
{
    return atomic_load(&allocations);
}

bool vec_grow_(void **at, int *capacity, int count, size_t size)
{
    if (count < *capacity)
        return true;
    if (count >= INT_MAX / 2 || size == 0)
        return false;
    int larger = count < 8 ? 8 : count * 2;
    if ((size_t)larger > SIZE_MAX / size)
        return false;
    /* The caller's pointer has another type than void *: it is read and written as bytes. */
    void *old;
    memcpy(&old, at, sizeof old);
    void *grown = base_realloc(old, (size_t)larger * size);
    if (!grown)
        return false;
    memcpy(at, &grown, sizeof grown);
    *capacity = larger;
    return true;
}

/* ---- arena
 * ----------------------------------------------------------------------------------------------------------- */

typedef struct Chunk Chunk;
struct Chunk {
    Chunk *next;       /* older */
    size_t used, size; /* bytes of data */
    _Alignas(ALIGN) unsigned char data[];
};

struct Arena {
    Chunk *newest;
    size_t next_size;
};

Arena *arena_open(void)
{
    Arena *a = base_alloc(sizeof *a);
    if (a)
        a->next_size = FIRST_CHUNK;
    return a;
}

void arena_close(Arena *a)
{
    if (!a)
        return;
    for (Chunk *c = a->newest, *next; c; c = next) {
        next = c->next;
        ASAN_UNPOISON_MEMORY_REGION(c->data, c->size);
        base_free(c);
    }
    base_free(a);
}

static Chunk *chunk_new(size_t size)
{
    if (size > SIZE_MAX - sizeof(Chunk))
        return NULL;
    Chunk *c = base_alloc(sizeof(Chunk) + size);
    if (!c)
        return NULL;
    c->size = size;
    ASAN_POISON_MEMORY_REGION(c->data, c->size);
    return c;
}

void *arena_alloc(Arena *a, size_t count, size_t size)
{
    if (size && count > (SIZE_MAX / 2) / size)
        return NULL;
    size_t bytes = count * size;
    if (bytes == 0)
        bytes = 1;
    if (!may_allocate(bytes))
        return NULL; /* on demand: for a test every allocation is one, whether it needs a chunk or not */
    size_t taken = (bytes + ALIGN - 1) / ALIGN * ALIGN + GAP;

    Chunk *c = a->newest;
    if (!c || taken > c->size - c->used) {
        if (taken > a->next_size / 4) {
            /* Large: a chunk of its own, behind the newest so that the rest of that one stays in use. */
            Chunk *own = chunk_new(taken);
            if (!own)
                return NULL;
            own->used = taken;
            if (c) {
                own->next = c->next;
                c->next = own;
            } else {
                a->newest = own;
            }
            ASAN_UNPOISON_MEMORY_REGION(own->data, bytes);
            return own->data;
        }
        Chunk *fresh = chunk_new(a->next_size);
        if (!fresh)
            return NULL;
        fresh->next = c;
        a->newest = c = fresh;
        if (a->next_size < LARGEST_CHUNK)
            a->next_size *= 2;
    }
    void *p = c->data + c->used;
    c->used += taken;
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    return p;
}

char *arena_strdup(Arena *a, const char *s)
{
    size_t size = strlen(s) + 1;
    char *copy = arena_alloc(a, size, 1);
    return copy ? memcpy(copy, s, size) : NULL;
}

char *arena_printf(Arena *a, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : arena_alloc(a, (size_t)length + 1, 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}
