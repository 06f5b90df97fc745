/*-------------------------------------------------------------------------
 *
 * secret.c
 *	  Random secrets, and their comparison.
 *
 * client/web/secret.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/*
 * Make a random secret in hexadecimal digits.
 */
void
secret_make(char *secret)
{
	unsigned char bytes[SECRET_BYTES];

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		fatal(EXIT_REFUSED, "getrandom: %s", strerror(errno));
	for (int i = 0; i < SECRET_BYTES; i++)
		snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
	explicit_bzero(bytes, sizeof(bytes));
}

/*
 * True if two texts are equal.  The time depends only on their lengths.
 */
bool
secret_equal(const char *a, const char *b)
{
	size_t		length = strlen(a);
	unsigned char differ = 0;

	if (strlen(b) != length)
		return false;
	for (size_t i = 0; i < length; i++)
		differ |= (unsigned char) a[i] ^ (unsigned char) b[i];
	return differ == 0;
}
