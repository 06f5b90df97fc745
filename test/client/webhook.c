/*-------------------------------------------------------------------------
 *
 * webhook.c
 *	  Tries client/worker/webhook.c with the test vectors of the standards.
 *
 * Addresses are only parsed: nothing is sent anywhere.  Wrong results are printed,
 * and then the exit status is 1.
 *
 * test/client/webhook.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/webhook.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int	wrong;

static void
expect(bool right, const char *what, const char *of)
{
	if (right)
		return;
	printf("%s: %s\n", what, of);
	wrong = 1;
}

/*
 * The vectors of the libraries of Standard Webhooks ("sign function works", and their
 * default secret), and the values refused by their tests.
 */
static void
try_signatures(void)
{
	static const char *const secrets[] = {
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
		" whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw \t\r\n",
	};
	static const char *const refused[] = {
		"", "\n", "whsec_", "whsec_\n", "whsec_ \n", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!", "whsec_MfKQ 9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"whsec_====", "whsec_QQ==QQ==", "whsec_QQ=Q",
		"whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
	};
	static const struct
	{
		const char *secret;
		size_t		length;
	}			lengths[] = {
		{"whsec_QUI=", 2}, {"whsec_QQ==", 1}, {"whsec_QUJD", 3}, {"whsec_+/8=", 2}, {"geheim", 6}, {"geheim \n", 6},
		{"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", 32}
	};

	for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++)
	{
		WebhookKey	key = {NULL, 0};
		const char *why = webhook_read_key(secrets[i], &key);
		char	   *signature = why == NULL
			? webhook_signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "{\"test\": 2432232314}") : NULL;

		expect(signature != NULL && strcmp(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=") == 0,
			   "the signature differs with the secret", secrets[i]);
		free(signature);
		free(key.bytes);
	}
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
	{
		WebhookKey	key = {NULL, 0};

		expect(webhook_read_key(refused[i], &key) != NULL, "a secret is accepted", refused[i]);
		free(key.bytes);
	}
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
	{
		WebhookKey	key = {NULL, 0};

		expect(webhook_read_key(lengths[i].secret, &key) == NULL && key.length == lengths[i].length,
			   "another length of the key of the secret", lengths[i].secret);
		free(key.bytes);
	}
}

/*
 * The first and the last address of each network in the IANA special-purpose
 * registries that is not globally reachable, and their neighbours.
 */
static void
try_addresses(void)
{
	static const char *const special[] = {
		"0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255",
		"127.0.0.1", "127.255.255.255", "169.254.0.0", "169.254.169.254", "169.254.255.255",
		"172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.8", "192.0.0.170", "192.0.0.255",
		"192.0.2.0", "192.0.2.255", "192.88.99.0", "192.88.99.255", "192.168.0.0", "192.168.255.255",
		"198.18.0.0", "198.19.255.255", "198.51.100.0", "198.51.100.255", "203.0.113.0", "203.0.113.255",
		"224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.255",
		"::", "::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:198.18.0.1", "::10.0.0.1", "::ffff:0:10.0.0.1",
		"64:ff9b::10.0.0.1", "64:ff9b::192.0.0.1", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8", "100::1", "100:0:0:1::1",
		"2001::", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:20::1",
		"2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
		"2002::", "2002:a00:1::1", "2002:7f00:1::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "5f00::1", "fc00::1",
		"fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fe80::1", "febf::1", "fec0::1", "ff02::1"
	};
	static const char *const public[] = {
		"1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0",
		"192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
		"198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "8.8.8.8",
		"::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2000::1", "2001:200::", "2001:4860:4860::8888",
		"2001:db7:ffff::1", "2001:db9::", "2003::", "2620:4f:8000::1", "2a00:1450::1", "3ffe:ffff::1", "3fff:1000::"
	};

	for (size_t i = 0; i < (sizeof(special) + sizeof(public)) / sizeof(special[0]); i++)
	{
		bool		is_special = i < sizeof(special) / sizeof(special[0]);
		const char *text = is_special ? special[i] : public[i - sizeof(special) / sizeof(special[0])];
		struct sockaddr_in ip4 = {.sin_family = AF_INET};
		struct sockaddr_in6 ip6 = {.sin6_family = AF_INET6};
		const struct sockaddr *address = (struct sockaddr *) &ip4;

		if (inet_pton(AF_INET, text, &ip4.sin_addr) != 1)
		{
			expect(inet_pton(AF_INET6, text, &ip6.sin6_addr) == 1, "no address", text);
			address = (struct sockaddr *) &ip6;
		}
		expect(webhook_address_is_public(address) != is_special,
			   is_special ? "a special address is taken for public" : "a public address is refused", text);
	}
	expect(!webhook_address_is_public(&(struct sockaddr)
	{
		.sa_family = AF_UNIX
	}), "another family", "AF_UNIX");
}

static void
try_redirects(void)
{
	static const struct
	{
		const char *from;
		const char *to;
		bool		same;
	}			sites[] = {
		{"https://a.example/x", "https://a.example/y?z", true},
		{"https://a.example/x", "https://A.EXAMPLE:443/y", true},
		{"http://a.example/x", "https://a.example/x", true},
		{"http://a.example:80/x", "https://a.example:443/x", true},
		{"http://user:word@a.example/", "http://a.example/y", true},
		{"https://a.example/x", "http://a.example/x", false},
		{"https://a.example/x", "https://b.example/x", false},
		{"https://a.example/x", "https://a.example.b.example/x", false},
		{"https://a.example/x", "https://a.example@b.example/x", false},
		{"https://a.example/x", "https://a.example:8443/x", false},
		{"http://a.example:8080/x", "https://a.example/x", false},
		{"http://a.example/x", "https://a.example:8443/x", false},
		{"http://127.0.0.1:81/x", "http://localhost:81/x", false},
		{"http://a.example/x", "file:///etc/passwd", false},
		{"http://a.example/x", "", false}
	};

	for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
		expect(webhook_same_site(sites[i].from, sites[i].to) == sites[i].same,
			   sites[i].same ? "a redirect is refused" : "a redirect is followed", sites[i].to);
}

/*
 * The examples of RFC 7231: the three forms of a date (7.1.1.1), and Retry-After
 * (7.1.3).
 */
static void
try_retry_after(void)
{
	const time_t now = 784111767;	/* ten seconds before the example's date */
	static const struct
	{
		const char *value;
		long		seconds;
	}			values[] = {
		{"Sun, 06 Nov 1994 08:49:37 GMT", 10}, {"Sunday, 06-Nov-94 08:49:37 GMT", 10},
		{"Sun Nov  6 08:49:37 1994", 10}, {"120", 120}, {" 120 ", 120},
		{"Fri, 31 Dec 1999 23:59:59 GMT", LONGEST_RETRY_AFTER}, {"0", 1}, {"Sun, 06 Nov 1994 08:49:27 GMT", 1},
		{"Sat, 05 Nov 1994 08:49:37 GMT", 1}, {"86400", 86400}, {"86401", LONGEST_RETRY_AFTER},
		{"3122064000", LONGEST_RETRY_AFTER}, {"99999999999999999999999", LONGEST_RETRY_AFTER},
		{"-1", -1}, {"+5", -1}, {"soon", -1}, {"", -1}, {NULL, -1}
	};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		expect(webhook_retry_after(values[i].value, now) == values[i].seconds, "another time for Retry-After",
			   values[i].value != NULL ? values[i].value : "none");
}

int
main(void)
{
	try_signatures();
	try_addresses();
	try_redirects();
	try_retry_after();
	return wrong;
}
