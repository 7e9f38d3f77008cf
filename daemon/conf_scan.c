// SPDX-License-Identifier: Apache-2.0
/*
 * A lexer for libconfuse's language, just good enough to find keys: comments, strings, braces,
 * words. It owns nothing; what it refuses stands in conf_scan.h.
 */
#include "conf_scan.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define WORD_MAX 128

struct scan {
	const char *p, *end;
	int line;
	int dollar_line;     /* of the first "${" */
	int append_line;     /* of the first "+=" */
	int open, open_line; /* what begins there and has no end */
	char word[WORD_MAX];
};

enum token { T_END, T_WORD, T_STRING, T_OPEN, T_CLOSE, T_ASSIGN, T_OTHER };

static bool at(const struct scan *s, const char *text)
{
	size_t n = strlen(text);

	return (size_t)(s->end - s->p) >= n && !memcmp(s->p, text, n);
}

static void step(struct scan *s)
{
	if (*s->p == '\n')
		s->line++;
	s->p++;
}

static void unclosed(struct scan *s, int what, int line)
{
	s->open = what;
	s->open_line = line;
}

static void skip_comment(struct scan *s)
{
	if (at(s, "/*")) {
		int line = s->line;

		s->p += 2;
		while (s->p < s->end && !at(s, "*/"))
			step(s);
		if (s->p < s->end)
			s->p += 2;
		else
			unclosed(s, CONF_SCAN_COMMENT, line);
		return;
	}
	while (s->p < s->end && *s->p != '\n')
		s->p++;
}

static void look_for_dollar(struct scan *s)
{
	if (!s->dollar_line && at(s, "${"))
		s->dollar_line = s->line;
}

static enum token read_string(struct scan *s)
{
	char quote = *s->p++;
	int line = s->line;

	while (s->p < s->end && *s->p != quote) {
		look_for_dollar(s);
		if (*s->p == '\\' && s->p + 1 < s->end)
			step(s);
		step(s);
	}
	if (s->p < s->end)
		s->p++;
	else
		unclosed(s, CONF_SCAN_QUOTE, line);
	return T_STRING;
}

static enum token read_word(struct scan *s)
{
	size_t n = 0;

	while (s->p < s->end && !strchr(" \t\r\n\"'{}()=,#;", *s->p)) {
		look_for_dollar(s);
		if (at(s, "+="))
			break;
		if (at(s, "${")) /* its brace belongs to it */
			s->p++;
		if (n + 1 < sizeof(s->word))
			s->word[n++] = *s->p;
		s->p++;
	}
	s->word[n] = '\0';
	return T_WORD;
}

static enum token next(struct scan *s)
{
	for (;;) {
		while (s->p < s->end && strchr(" \t\r\n", *s->p))
			step(s);
		if (s->p >= s->end || *s->p == '\0')
			return T_END;
		if (*s->p != '#' && !at(s, "//") && !at(s, "/*"))
			break;
		skip_comment(s);
	}
	switch (*s->p) {
	case '"':
	case '\'':
		return read_string(s);
	case '{':
		s->p++;
		return T_OPEN;
	case '}':
		s->p++;
		return T_CLOSE;
	case '=':
		s->p++;
		return T_ASSIGN;
	case '+':
		if (at(s, "+=")) {
			s->p += 2;
			if (!s->append_line)
				s->append_line = s->line;
			return T_ASSIGN;
		}
		break;
	case '(':
	case ')':
	case ',':
	case ';':
		s->p++;
		return T_OTHER;
	}
	return read_word(s);
}

int conf_scan(const char *text, size_t len,
	      int (*found)(const char *section, const char *key, int line, void *arg), void *arg,
	      int *line)
{
	struct scan s = { .p = text, .end = text + len, .line = 1 };
	char key[WORD_MAX] = "", section[WORD_MAX] = "";
	bool in_list = false, after_assign = false;
	int key_line = 0;
	enum token t;

	while ((t = next(&s)) != T_END) {
		bool value = after_assign;

		after_assign = false;
		if (in_list) {
			in_list = t != T_CLOSE;
		} else if (t == T_WORD && !value) {
			memcpy(key, s.word, sizeof(key));
			key_line = s.line;
		} else if (t == T_ASSIGN && key[0]) {
			int rc = found(section, key, key_line, arg);

			if (rc)
				return rc;
			key[0] = '\0';
			after_assign = true;
		} else if (t == T_OPEN && value) {
			in_list = true;
		} else if (t == T_OPEN && key[0]) {
			memcpy(section, key, sizeof(section));
			key[0] = '\0';
		} else if (t == T_CLOSE) {
			section[0] = '\0';
		}
	}
	if (s.dollar_line) {
		*line = s.dollar_line;
		return CONF_SCAN_DOLLAR;
	}
	if (s.open) {
		*line = s.open_line;
		return s.open;
	}
	if (in_list || section[0]) {
		*line = s.line;
		return CONF_SCAN_OPEN;
	}
	if (s.append_line) {
		*line = s.append_line;
		return CONF_SCAN_APPEND;
	}
	return 0;
}
