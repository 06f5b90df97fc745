/*-------------------------------------------------------------------------
 *
 * content.c
 *	  A message in the form of the protocol: properties, headers and body.
 *
 * Headers are a JSON object here, and a table of typed fields in the protocol.
 *
 * client/broker/content.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERSISTENT		2		/* delivery mode */

static amqp_field_value_t field_of(json_t *json, amqp_pool_t *pool);
static bool has_long_name(json_t *json);
static json_t *json_of_table(const amqp_table_t *table);
static char *text_of(amqp_bytes_t bytes);

/*
 * Return the fields of a JSON object, allocated in the pool.  The texts belong to the
 * object.
 */
static amqp_table_t
table_of(json_t *object, amqp_pool_t *pool)
{
	amqp_table_t table = {0, NULL};
	const char *name;
	json_t	   *value;

	table.entries = amqp_pool_alloc(pool, (json_object_size(object) + 1) * sizeof(amqp_table_entry_t));
	json_object_foreach(object, name, value)
	{
		table.entries[table.num_entries].key = amqp_cstring_bytes(name);
		table.entries[table.num_entries++].value = field_of(value, pool);
	}
	return table;
}

static amqp_field_value_t
field_of(json_t *json, amqp_pool_t *pool)
{
	amqp_field_value_t field = {.kind = AMQP_FIELD_KIND_VOID};

	switch (json_typeof(json))
	{
		case JSON_STRING:
			field.kind = AMQP_FIELD_KIND_UTF8;
			field.value.bytes = (amqp_bytes_t)
			{
				json_string_length(json), (void *) json_string_value(json)
			};
			break;
		case JSON_INTEGER:
			field.kind = AMQP_FIELD_KIND_I64;
			field.value.i64 = json_integer_value(json);
			break;
		case JSON_REAL:
			field.kind = AMQP_FIELD_KIND_F64;
			field.value.f64 = json_real_value(json);
			break;
		case JSON_TRUE:
		case JSON_FALSE:
			field.kind = AMQP_FIELD_KIND_BOOLEAN;
			field.value.boolean = json_is_true(json);
			break;
		case JSON_OBJECT:
			field.kind = AMQP_FIELD_KIND_TABLE;
			field.value.table = table_of(json, pool);
			break;
		case JSON_ARRAY:
			field.kind = AMQP_FIELD_KIND_ARRAY;
			field.value.array.num_entries = (int) json_array_size(json);
			field.value.array.entries = amqp_pool_alloc(pool, (json_array_size(json) + 1) * sizeof(amqp_field_value_t));
			for (size_t i = 0; i < json_array_size(json); i++)
				field.value.array.entries[i] = field_of(json_array_get(json, i), pool);
			break;
		default:
			break;
	}
	return field;
}

/*
 * Return the headers of a job as JSON; NULL and the reason if a message cannot have them.
 */
json_t *
broker_headers(const char *text, char *why, size_t size)
{
	json_error_t error;
	json_t	   *headers;
	char	   *quoted;

	if (text == NULL)
		return json_object();
	quoted = numbers_quote(text);
	headers = json_loads(quoted, 0, &error);
	free(quoted);
	if (headers == NULL)
		snprintf(why, size, "its headers cannot be sent: %s", error.text);
	else if (has_long_name(headers))
	{
		snprintf(why, size, "the name of a header is longer than %d bytes", LONGEST_NAME);
		json_decref(headers);
		headers = NULL;
	}
	return headers;
}

/*
 * True if the name of a field is too long, at any depth.
 */
static bool
has_long_name(json_t *json)
{
	const char *name;
	json_t	   *value;
	size_t		i;

	/* one of the two loops is empty */
	json_object_foreach(json, name, value)
	{
		if (strlen(name) > LONGEST_NAME || has_long_name(value))
			return true;
	}
	json_array_foreach(json, i, value)
	{
		if (has_long_name(value))
			return true;
	}
	return false;
}

/*
 * Publish the message.  Returns a status of the library.
 */
int
broker_send(amqp_connection_state_t conn, const Message *message)
{
	amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG,.delivery_mode = PERSISTENT};
	char		why[SAID_REASON];
	json_t	   *headers = broker_headers(message->headers, why, sizeof(why));
	amqp_bytes_t body = {message->length, message->body};
	amqp_pool_t pool;
	int			status;

	if (headers == NULL)
		return AMQP_STATUS_INVALID_PARAMETER;
	init_amqp_pool(&pool, 4096);
#define SET(member, FLAG, value) \
	(properties.member = (value), properties._flags |= AMQP_BASIC_##FLAG##_FLAG)
	if (message->id != NULL)
		SET(message_id, MESSAGE_ID, amqp_cstring_bytes(message->id));
	if (message->type != NULL)
		SET(type, TYPE, amqp_cstring_bytes(message->type));
	if (message->content_type != NULL)
		SET(content_type, CONTENT_TYPE, amqp_cstring_bytes(message->content_type));
	if (message->timestamp > 0)
		SET(timestamp, TIMESTAMP, (uint64_t) message->timestamp);
	if (json_object_size(headers) > 0)
		SET(headers, HEADERS, table_of(headers, &pool));
#undef SET
	status = amqp_basic_publish(conn, CHANNEL, amqp_cstring_bytes(message->exchange), amqp_cstring_bytes(message->key),
								1, 0, &properties, body);
	json_decref(headers);
	empty_amqp_pool(&pool);
	return status;
}

/*
 * Return a field of the headers as JSON; NULL if JSON has no form of it.
 */
static json_t *
json_of(const amqp_field_value_t *field)
{
	json_t	   *array;

	switch (field->kind)
	{
		case AMQP_FIELD_KIND_BOOLEAN:
			return json_boolean(field->value.boolean);
		case AMQP_FIELD_KIND_I8:
			return json_integer(field->value.i8);
		case AMQP_FIELD_KIND_U8:
			return json_integer(field->value.u8);
		case AMQP_FIELD_KIND_I16:
			return json_integer(field->value.i16);
		case AMQP_FIELD_KIND_U16:
			return json_integer(field->value.u16);
		case AMQP_FIELD_KIND_I32:
			return json_integer(field->value.i32);
		case AMQP_FIELD_KIND_U32:
			return json_integer(field->value.u32);
		case AMQP_FIELD_KIND_I64:
			return json_integer(field->value.i64);
		case AMQP_FIELD_KIND_U64:
		case AMQP_FIELD_KIND_TIMESTAMP:
		case AMQP_FIELD_KIND_F32:
		case AMQP_FIELD_KIND_F64:
		case AMQP_FIELD_KIND_DECIMAL:
			return number_of(field);
		case AMQP_FIELD_KIND_UTF8:
		case AMQP_FIELD_KIND_BYTES:
			return memchr(field->value.bytes.bytes, 0, field->value.bytes.len) == NULL
				? json_stringn(field->value.bytes.bytes, field->value.bytes.len) : NULL;
		case AMQP_FIELD_KIND_TABLE:
			return json_of_table(&field->value.table);
		case AMQP_FIELD_KIND_ARRAY:
			array = json_array();
			for (int i = 0; i < field->value.array.num_entries; i++)
			{
				json_t	   *element = json_of(&field->value.array.entries[i]);

				json_array_append_new(array, element != NULL ? element : json_null());
			}
			return array;
		case AMQP_FIELD_KIND_VOID:
			return json_null();
		default:
			return NULL;
	}
}

static json_t *
json_of_table(const amqp_table_t *table)
{
	json_t	   *object = json_object();

	for (int i = 0; i < table->num_entries; i++)
	{
		char	   *name = text_of(table->entries[i].key);
		json_t	   *value = json_of(&table->entries[i].value);

		if (value != NULL)
			json_object_set_new(object, name, value);
		free(name);
	}
	return object;
}

static char *
text_of(amqp_bytes_t bytes)
{
	char	   *text = allocate(bytes.len + 1);

	memcpy(text, bytes.bytes, bytes.len);
	return text;
}

/*
 * Return a consumed message.  Its id and content type are also headers.
 */
Message *
broker_receive(const amqp_basic_deliver_t *delivery, const amqp_message_t *content)
{
	const amqp_basic_properties_t *properties = &content->properties;
	Message    *message = allocate(sizeof(Message));
	json_t	   *headers = properties->_flags & AMQP_BASIC_HEADERS_FLAG ? json_of_table(&properties->headers) : json_object();

	message->tag = delivery->delivery_tag;
	message->exchange = text_of(delivery->exchange);
	message->key = text_of(delivery->routing_key);
	if (properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
	{
		message->id = text_of(properties->message_id);
		json_object_set_new(headers, "message_id", json_string(message->id));
	}
	if (properties->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
	{
		message->content_type = text_of(properties->content_type);
		json_object_set_new(headers, "content_type", json_string(message->content_type));
	}
	if (properties->_flags & AMQP_BASIC_TYPE_FLAG)
		message->type = text_of(properties->type);
	message->headers = numbers_unmark(json_dumps(headers, JSON_COMPACT));
	json_decref(headers);
	message->body = text_of(content->body);
	message->length = content->body.len;
	return message;
}

#endif							/* HAVE_RABBITMQ */
