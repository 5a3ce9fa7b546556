/* html_check.h - is this a page that needs nothing from outside and that every browser reads alike? A small checker for
 * tests: stricter than HTML, which forgives almost everything. */
#ifndef FERRY_TESTS_HTML_CHECK_H
#define FERRY_TESTS_HTML_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { HTML_DEPTH = 64, HTML_NAME = 32 };

typedef struct HtmlCheck {
    const char *at;
    char open[HTML_DEPTH][HTML_NAME];
    int depth, elements;
    char why[200];
} HtmlCheck;

static inline bool html_fail(HtmlCheck *c, const char *why)
{
    snprintf(c->why, sizeof c->why, "%s before: %.60s", why, c->at);
    return false;
}

static inline bool html_one_of(const char *name, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

/* After '&': a named or numbered entity. */
static inline bool html_entity(HtmlCheck *c)
{
    static const char *const known[] = {"amp;", "lt;", "gt;", "quot;", NULL};
    for (int i = 0; known[i]; i++)
        if (strncmp(c->at + 1, known[i], strlen(known[i])) == 0)
            return true;
    size_t digits = c->at[1] == '#' ? strspn(c->at + 2, "0123456789") : 0;
    return digits > 0 && c->at[2 + digits] == ';' ? true : html_fail(c, "a bare &");
}

static inline bool html_name(HtmlCheck *c, char out[HTML_NAME])
{
    size_t n = strspn(c->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    if (n == 0 || n >= HTML_NAME)
        return html_fail(c, "no name");
    memcpy(out, c->at, n);
    out[n] = 0;
    c->at += n;
    return true;
}

static inline bool html_attributes(HtmlCheck *c)
{
    char name[HTML_NAME], seen[16][HTML_NAME];
    int n = 0;
    while (*c->at == ' ') {
        c->at++;
        if (!html_name(c, name))
            return false;
        for (int i = 0; i < n; i++)
            if (strcmp(seen[i], name) == 0)
                return html_fail(c, "an attribute twice");
        if (n == 16)
            return html_fail(c, "too many attributes");
        strcpy(seen[n++], name);
        if (strncmp(c->at, "=\"", 2) != 0)
            return html_fail(c, "an attribute without a quoted value");
        if (strncmp(name, "on", 2) == 0 || strcmp(name, "src") == 0 || strcmp(name, "href") == 0)
            return html_fail(c, "an attribute that runs or loads something");
        for (c->at += 2; *c->at != '"'; c->at++)
            if (!*c->at || *c->at == '<' || *c->at == '>')
                return html_fail(c, "a value that does not end");
            else if (*c->at == '&' && !html_entity(c))
                return false;
        c->at++;
    }
    return true;
}

static inline bool html_tag(HtmlCheck *c)
{
    static const char *const empty[] = {"meta", "br", "hr", NULL};
    static const char *const drawn[] = {"rect", "path", NULL}; /* SVG: may close themselves */
    static const char *const raw[] = {"style", "script", NULL};
    static const char *const allowed[] = {
        "html", "head", "meta",  "title", "style", "body", "header", "main", "section", "footer", "div",  "dl",  "dt",
        "dd",   "h1",   "h2",    "p",     "ul",    "li",   "s",      "b",    "i",       "small",  "span", "svg", "g",
        "rect", "path", "table", "thead", "tbody", "tr",   "th",     "td",   "button",  "script", NULL};
    char name[HTML_NAME];
    bool closing = c->at[1] == '/';
    c->at += closing ? 2 : 1;
    if (!html_name(c, name))
        return false;
    if (closing) {
        if (c->depth == 0 || strcmp(c->open[c->depth - 1], name) != 0)
            return html_fail(c, "closes what is not open");
        c->depth--;
        return *c->at++ == '>' ? true : html_fail(c, "no > after a closing tag");
    }
    if (!html_one_of(name, allowed))
        return html_fail(c, "an element that the page never makes");
    if (!html_attributes(c))
        return false;
    c->elements++;
    bool self = *c->at == '/';
    if (self && !html_one_of(name, drawn))
        return html_fail(c, "an element that cannot close itself");
    c->at += self;
    if (*c->at++ != '>')
        return html_fail(c, "no > after a tag");
    if (self || html_one_of(name, empty))
        return true;
    if (c->depth == HTML_DEPTH)
        return html_fail(c, "nested too deep");
    strcpy(c->open[c->depth++], name);
    if (html_one_of(name, raw)) {
        const char *end = strstr(c->at, "</");
        if (!end || strncmp(end + 2, name, strlen(name)) != 0)
            return html_fail(c, "style or script does not end where it should");
        c->at = end;
    }
    return true;
}

static inline bool html_check(HtmlCheck *c, const char *page)
{
    static const char *const outside[] = {"http:", "https:", "url(", "@import", "//cdn", NULL};
    *c = (HtmlCheck){.at = page};
    for (int i = 0; outside[i]; i++)
        if ((c->at = strstr(page, outside[i])))
            return html_fail(c, "something from outside");
    c->at = page;
    if (strncmp(c->at, "<!--", 4) == 0) { /* the line that says who wrote the file */
        const char *end = strstr(c->at, "-->\n");
        if (!end || end > strchr(c->at, '\n'))
            return html_fail(c, "the first line is no comment");
        c->at = end + 4;
    }
    if (strncmp(c->at, "<!DOCTYPE html>\n", 16) != 0)
        return html_fail(c, "no DOCTYPE");
    c->at += 16;
    while (*c->at) {
        unsigned char b = (unsigned char)*c->at;
        if ((b < 0x20 && b != '\n') || b == 0x7f)
            return html_fail(c, "a control character");
        if (b == '<') {
            if (!html_tag(c))
                return false;
        } else if (b == '>') {
            return html_fail(c, "a bare >");
        } else {
            if (b == '&' && !html_entity(c))
                return false;
            c->at++;
        }
    }
    if (c->depth != 0)
        return html_fail(c, "an element is open at the end");
    return c->elements > 10 ? true : html_fail(c, "an empty page");
}

#endif
