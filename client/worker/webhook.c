/*-------------------------------------------------------------------------
 *
 * webhook.c
 *	  Standards for requests of jobs: signatures, addresses, redirects, Retry-After.
 *
 * client/worker/webhook.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/webhook.h"

#ifdef HAVE_LIBCURL

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KEY_PREFIX		"whsec_"
#define PRIVATE_PREFIX	"whsk_"
#define BLANKS			" \t\r\n\v\f"

/* A network: an address, and the length of the prefix. */
typedef struct Network
{
	const char *address;
	int			bits;
} Network;

/*
 * IPv4 networks that are not globally reachable, from the IANA IPv4 Special-Purpose
 * Address Registry; also multicast and deprecated relays.
 */
static const Network special_ip4[] = {
	{"0.0.0.0", 8},				/* this network */
	{"10.0.0.0", 8},			/* private use */
	{"100.64.0.0", 10},			/* shared: carrier-grade NAT */
	{"127.0.0.0", 8},			/* loopback */
	{"169.254.0.0", 16},		/* link local */
	{"172.16.0.0", 12},			/* private use */
	{"192.0.0.0", 24},			/* IETF protocol assignments */
	{"192.0.2.0", 24},			/* documentation */
	{"192.88.99.0", 24},		/* 6to4 relay anycast, deprecated */
	{"192.168.0.0", 16},		/* private use */
	{"198.18.0.0", 15},			/* benchmarking */
	{"198.51.100.0", 24},		/* documentation */
	{"203.0.113.0", 24},		/* documentation */
	{"224.0.0.0", 4},			/* multicast */
	{"240.0.0.0", 4},			/* reserved, and broadcast */
};

/* The IPv6 unicast space for hosts, and the NAT64 prefix before an IPv4 address. */
static const Network given_ip6 = {"2000::", 3};
static const Network nat64 = {"64:ff9b::", 96};

/* Special networks within this space, from the IPv6 registry. */
static const Network special_ip6[] = {
	{"2001::", 23},				/* IETF protocol assignments, and Teredo */
	{"2001:db8::", 32},			/* documentation */
	{"2002::", 16},				/* 6to4: contains an IPv4 address */
	{"3fff::", 20},				/* documentation */
};

/*
 * Decode the key in a secret; the caller frees it.  A secret that begins with whsec_ is
 * base64, as in Standard Webhooks.  Any other secret is the key.  Surrounding blanks are
 * ignored.  Returns NULL, or an error message.
 */
const char *
webhook_read_key(const char *secret, WebhookKey *key)
{
	size_t		length;
	const char *coded;
	size_t		padding = 0;
	int			decoded;

	secret += strspn(secret, BLANKS);
	length = strlen(secret);
	while (length > 0 && strchr(BLANKS, secret[length - 1]) != NULL)
		length--;
	if (strncmp(secret, PRIVATE_PREFIX, strlen(PRIVATE_PREFIX)) == 0)
		return "it is an asymmetric key, which is not supported";
	coded = secret + strlen(KEY_PREFIX);
	if (length < strlen(KEY_PREFIX) || strncmp(secret, KEY_PREFIX, strlen(KEY_PREFIX)) != 0)
	{
		key->bytes = (unsigned char *) strndup(secret, length);
		key->length = length;
		return key->bytes == NULL ? "out of memory" : length == 0 ? "it is empty" : NULL;
	}
	length -= strlen(KEY_PREFIX);
	if (length == 0)
		return "it is empty";
	if ((key->bytes = calloc(1, length)) == NULL)
		return "out of memory";
	while (padding < length && coded[length - 1 - padding] == '=')
		padding++;
	decoded = length % 4 == 0 && padding <= 2 && memchr(coded, '=', length - padding) == NULL
		? EVP_DecodeBlock(key->bytes, (const unsigned char *) coded, (int) length) : -1;
	if (decoded < 0)
		return "behind whsec_ it is not base64";
	/* the padding was decoded as zero bytes */
	key->length = decoded - padding;
	return NULL;
}

/*
 * Return "v1," and the HMAC of id, time and payload.  The caller frees it; NULL if memory
 * is exhausted.
 */
char *
webhook_signature(const WebhookKey *key, const char *id, const char *timestamp, const char *payload)
{
	char	   *text;
	char	   *signature;
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned int length;
	int			n = asprintf(&text, "%s.%s.%s", id, timestamp, payload);

	if (n < 0)
		return NULL;
	HMAC(EVP_sha256(), key->bytes, (int) key->length, (unsigned char *) text, n, digest, &length);
	free(text);
	signature = calloc(1, strlen("v1,") + 4 * (EVP_MAX_MD_SIZE / 3 + 1) + 1);
	if (signature != NULL)
	{
		strcpy(signature, "v1,");
		EVP_EncodeBlock((unsigned char *) signature + strlen("v1,"), digest, (int) length);
	}
	return signature;
}

static bool
is_within(int family, const unsigned char *address, const Network *network)
{
	unsigned char first[sizeof(struct in6_addr)];
	int			bytes = network->bits / 8;
	int			rest = network->bits % 8;

	if (inet_pton(family, network->address, first) != 1)
		return false;
	return memcmp(address, first, bytes) == 0 &&
		(rest == 0 || (address[bytes] ^ first[bytes]) >> (8 - rest) == 0);
}

/*
 * True if the address is a public internet address.
 */
bool
webhook_address_is_public(const struct sockaddr *address)
{
	const unsigned char *bytes;

	if (address->sa_family == AF_INET)
	{
		bytes = (const unsigned char *) &((const struct sockaddr_in *) (const void *) address)->sin_addr;
		for (size_t i = 0; i < sizeof(special_ip4) / sizeof(special_ip4[0]); i++)
			if (is_within(AF_INET, bytes, &special_ip4[i]))
				return false;
		return true;
	}
	if (address->sa_family == AF_INET6)
	{
		const struct in6_addr *ip = &((const struct sockaddr_in6 *) (const void *) address)->sin6_addr;
		struct sockaddr_in inner = {.sin_family = AF_INET};

		/* an embedded IPv4 address */
		bytes = ip->s6_addr;
		if (IN6_IS_ADDR_V4MAPPED(ip) || IN6_IS_ADDR_V4COMPAT(ip) ||
			is_within(AF_INET6, bytes, &nat64))
		{
			memcpy(&inner.sin_addr, bytes + 12, sizeof(inner.sin_addr));
			return webhook_address_is_public((struct sockaddr *) &inner);
		}
		for (size_t i = 0; i < sizeof(special_ip6) / sizeof(special_ip6[0]); i++)
			if (is_within(AF_INET6, bytes, &special_ip6[i]))
				return false;
		return is_within(AF_INET6, bytes, &given_ip6);
	}
	return false;
}

/*
 * Get a part of a URL, to be freed by curl_free(); NULL if the part is absent.
 */
static CURLUcode
part_of(const char *url, CURLUPart part, char **value)
{
	CURLU	   *parsed = curl_url();
	CURLUcode	failure = curl_url_set(parsed, CURLUPART_URL, url, 0);

	*value = NULL;
	if (failure == CURLUE_OK)
		failure = curl_url_get(parsed, part, value, CURLU_DEFAULT_PORT);
	curl_url_cleanup(parsed);
	return failure;
}

/*
 * True if a request to "from" may be redirected to "to".  The payload and the signature
 * are meant for the same scheme, host and port.  An upgrade from http to https on the
 * default ports is allowed.
 */
bool
webhook_same_site(const char *from, const char *to)
{
	static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
	static const char *const upgrade[][2] = {{"http", "https"}, {NULL, NULL}, {"80", "443"}};
	bool		same[3] = {false};
	bool		upgraded[3] = {false};

	for (int i = 0; i < 3; i++)
	{
		char	   *values[2];
		bool		known = part_of(from, parts[i], &values[0]) == CURLUE_OK;

		known &= part_of(to, parts[i], &values[1]) == CURLUE_OK;
		same[i] = known && strcasecmp(values[0], values[1]) == 0;
		upgraded[i] = known && upgrade[i][0] != NULL &&
			strcasecmp(values[0], upgrade[i][0]) == 0 && strcasecmp(values[1], upgrade[i][1]) == 0;
		curl_free(values[0]);
		curl_free(values[1]);
	}
	return same[1] && ((same[0] && same[2]) || (upgraded[0] && upgraded[2]));
}

/*
 * The seconds requested by Retry-After: a number, or a date in a format of RFC 7231,
 * section 7.1.1.1.  At least 1, because a receiver that always says "now" must not keep
 * the program busy.  At most LONGEST_RETRY_AFTER.  -1 without a valid value.
 */
long
webhook_retry_after(const char *value, time_t now)
{
	char	   *end;
	long long	seconds;
	time_t		date;

	if (value == NULL)
		return -1;
	errno = 0;
	seconds = strtoll(value, &end, 10);
	if (end == value || end[strspn(end, BLANKS)] != '\0')
	{
		if ((date = curl_getdate(value, NULL)) == -1)
			return -1;
		seconds = date > now ? date - now : 0;
	}
	else if (seconds < 0 || strchr("+-", value[strspn(value, BLANKS)]) != NULL)
		return -1;
	return seconds < 1 ? 1 : seconds > LONGEST_RETRY_AFTER ? LONGEST_RETRY_AFTER : (long) seconds;
}

#endif							/* HAVE_LIBCURL */
