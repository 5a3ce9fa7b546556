/* yaml.c - YAML documents as trees.
 *
 * libyaml gives events (a scalar, the start and the end of a list or map); one recursive function turns them into
 * nodes. Its time is linear except for two things, and a hostile file of the largest size must not buy hours with them.
 *
 * First, each token costs a walk over the open flow brackets. The scanner looks ahead of the events by 1024 characters
 * of one line at most (the longest key that YAML allows), so refusing at the event that goes below the depth limit also
 * bounds the brackets that are ever open.
 *
 * Second, each %TAG directive is compared with all before it, within one event. Directives are refused before parsing,
 * and what follows the document is read as tokens instead of events.
 *
 * Keys are compared for duplicates by sorting. Anchors, aliases and tags are refused, so no node has two parents and
 * the tree is not larger than the text. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_BYTES = 16 << 20, MAX_DEPTH = 16, MAX_NODES = 2000000 };

typedef struct Reader {
    Diag *d;
    Arena *arena;
    const char *file; /* in the arena */
    const char *text; /* all of it */
    size_t size;
    yaml_parser_t parser;
    int nodes;
} Reader;

static Status fail_at(Reader *r, size_t line0, const char *what)
{
    return diag_fail(r->d, ST_MODEL, "%s:%zu: %s", r->file, line0 + 1, what);
}

static Status parser_failed(Reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return diag_oom(r->d);
    if (p->error == YAML_READER_ERROR) {
        /* Bytes that are no text come with an offset instead of a line. */
        size_t line = 0, end = p->problem_offset < r->size ? p->problem_offset : r->size;
        for (size_t i = 0; i < end; i++)
            line += r->text[i] == '\n';
        return fail_at(r, line, problem);
    }
    if (p->context)
        return diag_fail(r->d, ST_MODEL, "%s:%zu: %s %s (line %zu)", r->file, p->problem_mark.line + 1, problem,
                         p->context, p->context_mark.line + 1);
    return fail_at(r, p->problem_mark.line, problem);
}

static Status next_event(Reader *r, yaml_event_t *event)
{
    if (!yaml_parser_parse(&r->parser, event))
        return parser_failed(r);
    return ST_OK;
}

/* Bytes of the line break at `p`, 0 when there is none. YAML has five breaks: LF, CR, NEL, LS and PS. */
static size_t break_bytes(const char *p, size_t left)
{
    if (left >= 1 && (p[0] == '\n' || p[0] == '\r'))
        return left >= 2 && p[0] == '\r' && p[1] == '\n' ? 2 : 1;
    if (left >= 2 && memcmp(p, "\xc2\x85", 2) == 0)
        return 2;
    if (left >= 3 && (memcmp(p, "\xe2\x80\xa8", 3) == 0 || memcmp(p, "\xe2\x80\xa9", 3) == 0))
        return 3;
    return 0;
}

/* Directives stand before the document's start, at the first column, among blank lines, comments and ends of documents.
 */
static Status refuse_directives(Reader *r)
{
    const char *p = r->text, *end = r->text + r->size;
    for (size_t line = 0; p < end; line++) {
        if (*p == '%') {
            fail_at(r, line, "YAML directives (%) are not supported");
            return diag_hint(r->d, "remove the line");
        }
        const char *start = p;
        size_t broken;
        while (p < end && (*p == ' ' || *p == '\t'))
            p++;
        bool skip = p == end || *p == '#' || break_bytes(p, (size_t)(end - p)) > 0 ||
                    (end - start >= 3 && memcmp(start, "...", 3) == 0);
        if (!skip)
            return ST_OK;
        while (p < end && (broken = break_bytes(p, (size_t)(end - p))) == 0)
            p++;
        if (p < end)
            p += broken;
    }
    return ST_OK;
}

/* ---- building the tree
 * ----------------------------------------------------------------------------------------------- */

static Status node_new(Reader *r, const yaml_event_t *event, YamlKind kind, YamlNode **out)
{
    *out = NULL;
    if (++r->nodes > MAX_NODES)
        return fail_at(r, event->start_mark.line, "more than 2000000 values");
    YamlNode *n = ARENA_NEW(r->arena, YamlNode, 1);
    if (!n)
        return diag_oom(r->d);
    n->kind = kind;
    n->line = (int)event->start_mark.line + 1;
    n->file = r->file;
    *out = n;
    return ST_OK;
}

static Status scalar_text(Reader *r, const yaml_event_t *event, const char **out)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    *out = NULL;
    if (memchr(value, '\0', length))
        return fail_at(r, event->start_mark.line, "a text with a NUL character");
    char *copy = arena_alloc(r->arena, length + 1, 1);
    if (!copy)
        return diag_oom(r->d);
    memcpy(copy, value, length);
    *out = copy;
    return ST_OK;
}

static Status refuse_marks(Reader *r, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    const char *what = event->type == YAML_ALIAS_EVENT ? "aliases (*) are not supported"
                       : anchor                        ? "anchors (&) are not supported"
                       : tag                           ? "tags (!) are not supported"
                                                       : NULL;
    if (!what)
        return ST_OK;
    fail_at(r, event->start_mark.line, what);
    return diag_hint(r->d, "write the value out, or in double quotes when it is a text that starts with this sign");
}

typedef VEC(YamlNode *) NodeVec;
typedef struct KeyAt {
    const char *key;
    int line, index;
} KeyAt;
typedef VEC(KeyAt) KeyVec;

static int compare_keys(const void *left, const void *right)
{
    const KeyAt *l = left, *r = right;
    int order = strcmp(l->key, r->key);
    return order ? order : (l->index > r->index) - (l->index < r->index);
}

/* Moves the keys into the node and refuses the first one that was there before. Spoils the order of `keys`. */
static Status take_keys(Reader *r, KeyVec *keys, YamlNode *map)
{
    const char **key = ARENA_NEW(r->arena, const char *, keys->count);
    int *line = ARENA_NEW(r->arena, int, keys->count);
    if (!key || !line)
        return diag_oom(r->d);
    for (int i = 0; i < keys->count; i++) {
        key[i] = keys->at[i].key;
        line[i] = keys->at[i].line;
    }
    map->key = key;
    map->key_line = line;
    if (keys->count > 1)
        qsort(keys->at, (size_t)keys->count, sizeof(KeyAt), compare_keys);
    const KeyAt *again = NULL;
    for (int i = 1; i < keys->count; i++)
        if (strcmp(keys->at[i].key, keys->at[i - 1].key) == 0 && (!again || keys->at[i].index < again->index))
            again = &keys->at[i];
    if (again)
        return diag_fail(r->d, ST_MODEL, "%s:%d: the key '%.200s' is there twice (line %d)", r->file, again->line,
                         again->key, again[-1].line);
    return ST_OK;
}

static Status build(Reader *r, const yaml_event_t *event, int depth, YamlNode **out);

/* The values (and keys) up to the end of the list or map whose start was just read. */
static Status build_children(Reader *r, YamlNode *node, int depth, NodeVec *items, KeyVec *keys)
{
    bool map = node->kind == YAML_MAP;
    for (;;) {
        yaml_event_t event;
        KeyAt *key = NULL;
        TRY(next_event(r, &event));
        bool end = event.type == (map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT);
        Status status = ST_OK;
        if (map && !end) {
            status = refuse_marks(r, &event);
            if (status == ST_OK && event.type != YAML_SCALAR_EVENT)
                status = fail_at(r, event.start_mark.line, "a list or map as a key; a key is one text");
            if (status == ST_OK && !(key = VEC_PUSH(keys)))
                status = diag_oom(r->d);
            if (status == ST_OK) {
                key->line = (int)event.start_mark.line + 1;
                key->index = keys->count - 1;
                status = scalar_text(r, &event, &key->key);
            }
            yaml_event_delete(&event);
            if (status == ST_OK)
                status = next_event(r, &event);
            if (status != ST_OK)
                return status;
        }
        if (!end) {
            YamlNode **item = VEC_PUSH(items);
            status = item ? build(r, &event, depth, item) : diag_oom(r->d);
        }
        yaml_event_delete(&event);
        if (end || status != ST_OK)
            return status;
    }
}

/* The tree that starts with `event`, which the caller deletes; `depth` lists and maps are open around it. */
static Status build(Reader *r, const yaml_event_t *event, int depth, YamlNode **out)
{
    *out = NULL;
    TRY(refuse_marks(r, event));
    YamlNode *node;
    if (event->type == YAML_SCALAR_EVENT) {
        TRY(node_new(r, event, YAML_SCALAR, &node));
        TRY(scalar_text(r, event, &node->text));
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        *out = node;
        return ST_OK;
    }
    if (event->type != YAML_SEQUENCE_START_EVENT && event->type != YAML_MAPPING_START_EVENT)
        return fail_at(r, event->start_mark.line, "a value is missing");
    if (depth >= MAX_DEPTH)
        return fail_at(r, event->start_mark.line, "lists and maps are nested more than 16 deep");
    TRY(node_new(r, event, event->type == YAML_MAPPING_START_EVENT ? YAML_MAP : YAML_LIST, &node));

    NodeVec items = {0};
    KeyVec keys = {0};
    Status status = build_children(r, node, depth + 1, &items, &keys);
    if (status == ST_OK) {
        node->count = items.count;
        node->item = ARENA_NEW(r->arena, YamlNode *, items.count);
        if (!node->item)
            status = diag_oom(r->d);
        else if (items.count)
            memcpy(node->item, items.at, (size_t)items.count * sizeof *items.at);
    }
    if (status == ST_OK && node->kind == YAML_MAP)
        status = take_keys(r, &keys, node);
    VEC_FREE(&items);
    VEC_FREE(&keys);
    if (status == ST_OK)
        *out = node;
    return status;
}

/* One event of the frame around the document. */
static Status expect(Reader *r, yaml_event_type_t type, const char *otherwise)
{
    yaml_event_t event;
    TRY(next_event(r, &event));
    Status status = event.type == type ? ST_OK : fail_at(r, event.start_mark.line, otherwise);
    yaml_event_delete(&event);
    return status;
}

/* What follows the document, token by token: the next event would first take in all directives of a second document. No
 * event is asked for after this. */
static Status expect_no_more(Reader *r)
{
    yaml_token_type_t type;
    do {
        yaml_token_t token;
        if (!yaml_parser_scan(&r->parser, &token))
            return parser_failed(r);
        type = token.type;
        size_t line = token.start_mark.line;
        yaml_token_delete(&token);
        if (type == YAML_DOCUMENT_START_TOKEN || type == YAML_VERSION_DIRECTIVE_TOKEN ||
            type == YAML_TAG_DIRECTIVE_TOKEN)
            return fail_at(r, line, "a second document; one is read");
        if (type != YAML_STREAM_END_TOKEN && type != YAML_DOCUMENT_END_TOKEN)
            return fail_at(r, line, "text after the end of the document");
    } while (type != YAML_STREAM_END_TOKEN);
    return ST_OK;
}

static Status read_document(Reader *r, YamlNode **out)
{
    TRY(expect(r, YAML_STREAM_START_EVENT, "not YAML"));
    TRY(expect(r, YAML_DOCUMENT_START_EVENT, "the file is empty"));
    yaml_event_t event;
    TRY(next_event(r, &event));
    YamlNode *root;
    Status status = build(r, &event, 0, &root);
    yaml_event_delete(&event);
    TRY(status);
    TRY(expect(r, YAML_DOCUMENT_END_EVENT, "text after the end of the document"));
    TRY(expect_no_more(r));
    *out = root;
    return ST_OK;
}

Status yaml_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, YamlNode **out)
{
    *out = NULL;
    Reader r = {.d = d, .arena = a, .text = text, .size = size, .file = arena_strdup(a, name)};
    if (!r.file)
        return diag_oom(d);
    if (size > MAX_BYTES)
        return diag_fail(d, ST_MODEL, "%s: larger than 16 MiB", name);
    /* UTF-8 only: libyaml would guess other encodings, in which the scan for directives sees nothing. */
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        r.text += 3;
        r.size -= 3;
    }
    TRY(refuse_directives(&r));
    if (!yaml_parser_initialize(&r.parser))
        return diag_oom(d);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)r.text, r.size);
    Status status = read_document(&r, out);
    yaml_parser_delete(&r.parser);
    return status;
}

Status yaml_read(Diag *d, Arena *a, const char *path, YamlNode **out)
{
    *out = NULL;
    uint8_t *data;
    int64_t size;
    TRY(file_read(d, path, MAX_BYTES, &data, &size));
    Status status = yaml_parse(d, a, path, (const char *)data, (size_t)size, out);
    base_free(data);
    return status;
}
