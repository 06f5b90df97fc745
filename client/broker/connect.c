/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A new connection to the broker, with its channel.
 *
 * These functions block, and run in the thread of broker.c.
 *
 * client/broker/connect.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_TIME		10		/* for each step, in seconds */
#define HEARTBEAT		10		/* seconds */
#define LARGEST_FRAME	131072

/*
 * Write the reason of a failed call.
 */
void
broker_explain(amqp_rpc_reply_t reply, char *why, size_t size)
{
	amqp_bytes_t text = amqp_empty_bytes;
	int			code = 0;

	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
	{
		snprintf(why, size, "%s", amqp_error_string2(reply.library_error));
		return;
	}
	if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
	{
		const amqp_connection_close_t *close = reply.reply.decoded;

		code = close->reply_code;
		text = close->reply_text;
	}
	else if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD)
	{
		const amqp_channel_close_t *close = reply.reply.decoded;

		code = close->reply_code;
		text = close->reply_text;
	}
	snprintf(why, size, "%.*s (%d)", (int) (text.len < SAID_REASON ? text.len : SAID_REASON),
			 text.bytes != NULL ? (const char *) text.bytes : "", code);
}

/*
 * Make the socket of the connection; NULL if a file of TLS is not usable.  The
 * certificate of the broker is verified against --ca, or the certificates of the system.
 */
static amqp_socket_t *
new_socket(amqp_connection_state_t conn, const BrokerOptions *options, bool tls)
{
	static const char *const places[] = {
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem", NULL
	};
	const char *ca_file = options->ca_file != NULL ? options->ca_file : getenv("SSL_CERT_FILE");
	amqp_socket_t *socket;

	if (!tls)
		return amqp_tcp_socket_new(conn);
	socket = amqp_ssl_socket_new(conn);
	for (int i = 0; ca_file == NULL && places[i] != NULL; i++)
		if (access(places[i], R_OK) == 0)
			ca_file = places[i];
	if (socket == NULL || (ca_file != NULL && amqp_ssl_socket_set_cacert(socket, ca_file) != AMQP_STATUS_OK))
		return NULL;
	amqp_ssl_socket_set_verify_peer(socket, 1);
	amqp_ssl_socket_set_verify_hostname(socket, 1);
	amqp_ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST);
	if (options->cert_file != NULL &&
		amqp_ssl_socket_set_key(socket, options->cert_file, options->key_file) != AMQP_STATUS_OK)
		return NULL;
	return socket;
}

/*
 * Log in.  The program is told when the broker blocks publishers.
 */
static bool
login(amqp_connection_state_t conn, const BrokerAddress *address, char *why, size_t size)
{
	amqp_table_entry_t abilities[] = {
		{
			amqp_cstring_bytes("connection.blocked"), {.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}
		},
		{
			amqp_cstring_bytes("consumer_cancel_notify"), {.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}
		},
	};
	amqp_table_entry_t entries[] = {
		{
			amqp_cstring_bytes("capabilities"), {.kind = AMQP_FIELD_KIND_TABLE,.value.table = {2, abilities}}
		},
		{
			amqp_cstring_bytes("connection_name"), {.kind = AMQP_FIELD_KIND_UTF8,.value.bytes = amqp_cstring_bytes("jobq relay")}
		},
	};
	amqp_table_t properties = {2, entries};
	amqp_rpc_reply_t reply = amqp_login_with_properties(conn, address->vhost, CHANNEL, LARGEST_FRAME, HEARTBEAT, &properties,
														AMQP_SASL_METHOD_PLAIN, address->user, address->password);

	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		broker_explain(reply, why, size);
	return reply.reply_type == AMQP_RESPONSE_NORMAL;
}

static bool
open_channel(amqp_connection_state_t conn, const BrokerOptions *options, char *why, size_t size)
{
	amqp_channel_open(conn, CHANNEL);
	if (amqp_get_rpc_reply(conn).reply_type == AMQP_RESPONSE_NORMAL)
	{
		if (options->source == NULL)
			amqp_confirm_select(conn, CHANNEL);
		else if (amqp_basic_qos(conn, CHANNEL, 0, (uint16_t) options->prefetch, 0) != NULL)
			amqp_basic_consume(conn, CHANNEL, amqp_cstring_bytes(options->source), amqp_empty_bytes,
							   0, 0, 0, amqp_empty_table);
	}
	if (amqp_get_rpc_reply(conn).reply_type == AMQP_RESPONSE_NORMAL)
		return true;
	broker_explain(amqp_get_rpc_reply(conn), why, size);
	return false;
}

/*
 * Return a connection that is ready to publish or to consume, or NULL and the reason.
 */
amqp_connection_state_t
broker_connect(const BrokerOptions *options, const BrokerAddress *address, char *why, size_t size)
{
	amqp_connection_state_t conn = amqp_new_connection();
	amqp_socket_t *socket = conn != NULL ? new_socket(conn, options, address->tls) : NULL;
	struct timeval timeout = {ANSWER_TIME, 0};
	int			status;

	if (socket == NULL)
		snprintf(why, size, "could not prepare TLS: certificate or key is not readable");
	else if (amqp_set_handshake_timeout(conn, &timeout) != AMQP_STATUS_OK ||
			 amqp_set_rpc_timeout(conn, &timeout) != AMQP_STATUS_OK)
		snprintf(why, size, "out of memory");
	else if ((status = amqp_socket_open_noblock(socket, address->host, address->port, &timeout)) != AMQP_STATUS_OK)
		snprintf(why, size, "%s", amqp_error_string2(status));
	else if (login(conn, address, why, size) && open_channel(conn, options, why, size))
		return conn;
	if (conn != NULL)
		amqp_destroy_connection(conn);
	return NULL;
}

#endif							/* HAVE_RABBITMQ */
