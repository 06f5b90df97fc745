/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  The options of the command relay.
 *
 * client/relay/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "relay/relay.h"

#ifdef HAVE_RABBITMQ

#include <string.h>

#define MOST_AT_A_TIME	1000	/* limit of jobq.reserve() */

/* Options of the command, in the order of the table in commands.c. */
enum
{
	VALUE_TO, VALUE_FROM, VALUE_QUEUE, VALUE_EXCHANGE, VALUE_EXCHANGE_BY, VALUE_ROUTING_KEY, VALUE_ROUTING_KEY_BY,
	VALUE_MESSAGE_ID_BY, VALUE_WINDOW, VALUE_LEASE, VALUE_GRACE, VALUE_RETRY_DELAY, VALUE_SOURCE, VALUE_KIND,
	VALUE_BODY, VALUE_IGNORE_IDS, VALUE_CA, VALUE_CERT, VALUE_KEY, VALUE_STOP_WHEN_EMPTY, VALUE_NAME, VALUE_VERBOSE
};

static const char *const names[] = {
	[VALUE_EXCHANGE] = "exchange",[VALUE_EXCHANGE_BY] = "exchange-by",[VALUE_ROUTING_KEY] = "routing-key",
	[VALUE_ROUTING_KEY_BY] = "routing-key-by",[VALUE_MESSAGE_ID_BY] = "message-id-by",[VALUE_LEASE] = "lease",
	[VALUE_GRACE] = "grace",[VALUE_RETRY_DELAY] = "retry-delay",[VALUE_SOURCE] = "source",[VALUE_KIND] = "kind",
	[VALUE_BODY] = "body",[VALUE_IGNORE_IDS] = "ignore-ids",[VALUE_NAME] = "name",
};

/*
 * Refuse options of the other direction.
 */
static void
not_together(const char **values, const int *which, int n, const char *direction)
{
	for (int i = 0; i < n; i++)
		if (values[which[i]] != NULL)
			fatal(EXIT_USAGE, "--%s is not for %s", names[which[i]], direction);
}

/*
 * Check the field of a job that an option names.
 */
static const char *
field_of(const char *value, const char *option)
{
	if (value == NULL || strcmp(value, "kind") == 0 || strcmp(value, "queue") == 0 || strcmp(value, "tenant") == 0 ||
		(strncmp(value, "header ", 7) == 0 && value[7] != '\0') ||
		(strncmp(value, "payload ", 8) == 0 && value[8] != '\0'))
		return value;
	fatal(EXIT_USAGE, "invalid value for %s: \"%s\" (kind, queue, tenant, header NAME or payload PATH)", option, value);
}

static int
publish(const char **values, const BrokerOptions *broker)
{
	static const int others[] = {VALUE_SOURCE, VALUE_KIND, VALUE_BODY, VALUE_IGNORE_IDS};
	const char *queue[] = {values[VALUE_QUEUE]};
	PublishOptions options = {.broker = *broker,.window = broker->prefetch};

	not_together(values, others, sizeof(others) / sizeof(others[0]), "--to");
	if (queue[0] == NULL)
		fatal(EXIT_USAGE, "\"jobq relay --to\" needs --queue");
	if ((values[VALUE_EXCHANGE] != NULL && values[VALUE_EXCHANGE_BY] != NULL) ||
		(values[VALUE_ROUTING_KEY] != NULL && values[VALUE_ROUTING_KEY_BY] != NULL))
		fatal(EXIT_USAGE, "--exchange-by replaces --exchange, and --routing-key-by replaces --routing-key");
	options.queues = array_of(1, queue);
	options.exchange.from = field_of(values[VALUE_EXCHANGE_BY], "--exchange-by");
	if (options.exchange.from == NULL)
		options.exchange.text = values[VALUE_EXCHANGE] != NULL ? values[VALUE_EXCHANGE] : "";
	options.routing_key.text = values[VALUE_ROUTING_KEY];
	options.routing_key.from = field_of(values[VALUE_ROUTING_KEY_BY], "--routing-key-by");
	if (options.routing_key.text == NULL && options.routing_key.from == NULL)
		options.routing_key.from = "kind";
	options.message_id.from = field_of(values[VALUE_MESSAGE_ID_BY], "--message-id-by");
	if (options.message_id.from == NULL)
		options.message_id.from = "header message_id";
#define GIVEN(which, read, otherwise) (values[which] != NULL ? read : (otherwise))
	options.lease = GIVEN(VALUE_LEASE, duration(values[VALUE_LEASE], "--lease"), 30);
	if (options.lease < 1 || options.lease > 7 * 86400)
		fatal(EXIT_USAGE, "invalid value for --lease: \"%s\" (1 s to 7 d)", values[VALUE_LEASE]);
	options.grace = GIVEN(VALUE_GRACE, duration(values[VALUE_GRACE], "--grace"), 10);
	options.retry_delay = GIVEN(VALUE_RETRY_DELAY, duration(values[VALUE_RETRY_DELAY], "--retry-delay"), 5);
	options.name = GIVEN(VALUE_NAME, values[VALUE_NAME], "jobq relay");
#undef GIVEN
	options.stop_when_empty = values[VALUE_STOP_WHEN_EMPTY] != NULL;
	options.verbose = values[VALUE_VERBOSE] != NULL;
	return run_publish(&options);
}

static int
consume(const char **values, const BrokerOptions *broker)
{
	static const int others[] = {VALUE_EXCHANGE, VALUE_EXCHANGE_BY, VALUE_ROUTING_KEY, VALUE_ROUTING_KEY_BY,
		VALUE_MESSAGE_ID_BY, VALUE_LEASE, VALUE_GRACE, VALUE_RETRY_DELAY, VALUE_NAME
	};
	static const char *const hows[] = {"json", "text", "auto"};
	ConsumeOptions options = {.broker = *broker};
	int			how = 0;

	not_together(values, others, sizeof(others) / sizeof(others[0]), "--from");
	if (values[VALUE_SOURCE] == NULL)
		fatal(EXIT_USAGE, "\"jobq relay --from\" needs --source");
	while (values[VALUE_BODY] != NULL && strcmp(values[VALUE_BODY], hows[how]) != 0)
		if (++how == 3)
			fatal(EXIT_USAGE, "invalid value for --body: \"%s\" (json, text or auto)", values[VALUE_BODY]);
	options.broker.source = values[VALUE_SOURCE];
	options.queue = values[VALUE_QUEUE];
	options.kind = values[VALUE_KIND];
	options.body = (BodyHow) how;
	options.ignore_ids = values[VALUE_IGNORE_IDS] != NULL;
	options.stop_when_empty = values[VALUE_STOP_WHEN_EMPTY] != NULL;
	options.verbose = values[VALUE_VERBOSE] != NULL;
	return run_consume(&options);
}

/*
 * jobq relay
 */
int
run_relay(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	BrokerOptions broker = {0};
	const char *url;

	command_parse(command, argc, argv, values);
	if ((values[VALUE_TO] == NULL) == (values[VALUE_FROM] == NULL))
		fatal(EXIT_USAGE, "\"jobq relay\" needs either --to or --from");
	if ((values[VALUE_CERT] == NULL) != (values[VALUE_KEY] == NULL))
		fatal(EXIT_USAGE, "--cert and --key belong together");
	url = values[VALUE_TO] != NULL ? values[VALUE_TO] : values[VALUE_FROM];
	broker.url = broker_url((char *) url, values[VALUE_TO] != NULL ? "--to" : "--from");
	broker.ca_file = values[VALUE_CA];
	broker.cert_file = values[VALUE_CERT];
	broker.key_file = values[VALUE_KEY];
	broker.prefetch = values[VALUE_WINDOW] != NULL
		? (int) whole_number(values[VALUE_WINDOW], "--window", 1, MOST_AT_A_TIME) : 200;
	return values[VALUE_TO] != NULL ? publish(values, &broker) : consume(values, &broker);
}

#else							/* HAVE_RABBITMQ */

int
run_relay(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];

	command_parse(command, argc, argv, values);
	fatal(EXIT_USAGE, "this jobq was built without librabbitmq and jansson, so it has no relay: install %s, and build it again",
		  RELAY_PACKAGES);
}

#endif							/* HAVE_RABBITMQ */
