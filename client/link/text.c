/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Texts of other programs, escaped: no control characters, and a single line.
 *
 * Control characters are shown as \xNN.
 *
 * client/link/text.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <stdio.h>
#include <string.h>

/*
 * Read the next character of a UTF-8 text.  Returns the number of bytes.  An invalid byte
 * or a control character counts as a character, with "character" 0.
 */
size_t
take_character(const char *text, size_t left, wchar_t *character)
{
	const unsigned char *bytes = (const unsigned char *) text;
	int			more = bytes[0] >= 0xF0 ? 3 : bytes[0] >= 0xE0 ? 2 : bytes[0] >= 0xC0 ? 1 : 0;
	uint32_t	code = more == 0 ? bytes[0] : bytes[0] & (0x3F >> more);

	*character = 0;
	if ((size_t) more >= left || (more == 0 && (code >= 0x7F || code < 0x20)))
		return 1;
	for (int i = 1; i <= more; i++)
	{
		if ((bytes[i] & 0xC0) != 0x80)
			return 1;
		code = code << 6 | (bytes[i] & 0x3F);
	}
	/* C1 controls, and marks of text direction */
	if ((code >= 0x80 && code < 0xA0) || (code >= 0x202A && code <= 0x202E) ||
		(code >= 0x2066 && code <= 0x2069))
		return 1;
	*character = (wchar_t) code;
	return more + 1;
}

/*
 * Append a text, escaped, in at most "most" columns.  Returns the width.  Without a
 * buffer the text is only measured.
 */
int
append_text(PQExpBuffer buffer, const char *text, int most)
{
	bool		cut = most < INT32_MAX && text_width(text) > most;
	int			room = cut ? most - 1 : most;
	int			columns = 0;

	for (size_t left = strlen(text); left > 0;)
	{
		wchar_t		character;
		size_t		bytes = take_character(text, left, &character);
		char		shown[8];
		int			width;

		if (character != 0)
			width = wcwidth(character) < 0 ? 1 : wcwidth(character);
		else if (*text == '\n' || *text == '\t')
			width = snprintf(shown, sizeof(shown), "%s", *text == '\n' ? "\\n" : "\\t");
		else
			width = snprintf(shown, sizeof(shown), "\\x%02X", (unsigned char) *text);
		if (columns + width > room)
			break;
		if (buffer != NULL && character != 0)
			appendBinaryPQExpBuffer(buffer, text, bytes);
		else if (buffer != NULL)
			appendPQExpBufferStr(buffer, shown);
		columns += width;
		text += bytes;

		left -= bytes;
	}
	if (cut && buffer != NULL)
		appendPQExpBufferStr(buffer, "\u2026");
	return columns + (cut ? 1 : 0);
}

/*
 * The width of a text in columns.
 */
int
text_width(const char *text)
{
	return append_text(NULL, text, INT32_MAX);
}
