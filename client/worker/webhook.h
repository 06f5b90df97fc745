/*-------------------------------------------------------------------------
 *
 * webhook.h
 *	  Standards for requests of jobs: signatures, addresses, redirects, Retry-After.
 *
 * No function here sends data or ends the program, so test/client/webhook.c can test them
 * with the vectors of the specifications.
 *
 * client/worker/webhook.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEBHOOK_H
#define JOBQ_WEBHOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <time.h>

#define LONGEST_RETRY_AFTER	86400	/* seconds */

typedef struct WebhookKey
{
	unsigned char *bytes;		/* NULL: requests are not signed */
	size_t		length;
} WebhookKey;

/* client/worker/webhook.c */
extern const char *webhook_read_key(const char *secret, WebhookKey *key);
extern char *webhook_signature(const WebhookKey *key, const char *id, const char *timestamp, const char *payload);
extern bool webhook_address_is_public(const struct sockaddr *address);
extern bool webhook_same_site(const char *from, const char *to);
extern long webhook_retry_after(const char *value, time_t now);

#endif							/* JOBQ_WEBHOOK_H */
