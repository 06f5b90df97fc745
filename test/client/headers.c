/*-------------------------------------------------------------------------
 *
 * headers.c
 *	  Tries client/broker/numbers.c: numbers keep their digits between JSON and the
 *	  protocol of the broker.
 *
 * Wrong results are printed, and the exit status is 1 then.
 *
 * test/client/headers.c
 *
 *-------------------------------------------------------------------------
 */
#include "broker/inner.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int	wrong;

/* called if memory is exhausted */
void
fatal(int status, const char *format,...)
{
	fputs(format, stderr);
	exit(status);
}

static void
expect(const char *got, const char *expected)
{
	if (strcmp(got, expected) == 0)
		return;
	printf("%s is not %s\n", got, expected);
	wrong = 1;
}

/*
 * Headers of a job: a number that the protocol does not hold becomes a string.
 */
static void
try_to_protocol(void)
{
	static const char *const same[] = {
		"{\"id\": 50755254975729665, \"sum\": 1.5, \"no\": [-9223372036854775808, 9223372036854775807, 0, 0.0, -0.50]}",
		"{\"e\": [0.1, 0.30000000000000004, 1.7976931348623157, 12345678901234567000.0], \"text \\\" 12345678901234567890\": \"12345678901234567890.1\"}",
		"{\"zeros\": 100.000000000000000000000000000, \"small\": 0.000000000000000000000000000125, \"t\": [true, false, null]}",
	};
	static const char *const others[][2] = {
		{"{\"n\": 9223372036854775808}", "{\"n\": \"9223372036854775808\"}"},
		{"{\"id\": 50755254975729665, \"n\": [-9223372036854775809,1]}", "{\"id\": 50755254975729665, \"n\": [\"-9223372036854775809\",1]}"},
		{"{\"n\": 12345678901234567890.0123}", "{\"n\": \"12345678901234567890.0123\"}"},
		{"{\"n\": 0.1000000000000000055}", "{\"n\": \"0.1000000000000000055\"}"},
		{"{\"n\": 1.5e400}", "{\"n\": \"1.5e400\"}"},
	};

	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
		expect(numbers_quote(same[i]), same[i]);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		expect(numbers_quote(others[i][0]), others[i][1]);
}

static void
expect_json(amqp_field_value_t field, const char *expected)
{
	json_t	   *array = json_pack("[o*, s]", number_of(&field), "\\u0000\"1");

	expect(numbers_unmark(json_dumps(array, JSON_COMPACT)), expected);
	json_decref(array);
}

/*
 * Numbers of a message, each before a string that looks like a marked number.
 */
static void
try_from_protocol(void)
{
#define BEFORE(number) "[" number ",\"\\\\u0000\\\"1\"]"
#define DOUBLE(number) (amqp_field_value_t) {.kind = AMQP_FIELD_KIND_F64,.value.f64 = (number)}
#define FLOAT(number) (amqp_field_value_t) {.kind = AMQP_FIELD_KIND_F32,.value.f32 = (number)}
#define DECIMAL(number, places) \
	(amqp_field_value_t) {.kind = AMQP_FIELD_KIND_DECIMAL,.value.decimal = {(places), (uint32_t) (number)}}
	expect_json(DOUBLE(0.1), BEFORE("0.1"));
	expect_json(DOUBLE(-1.5), BEFORE("-1.5"));
	expect_json(DOUBLE(0.1 + 0.2), BEFORE("0.30000000000000004"));
	expect_json(DOUBLE(1e300), BEFORE("1e+300"));
	expect_json(DOUBLE(9007199254740993.0), BEFORE("9007199254740992"));
	expect_json(DOUBLE(NAN), "[\"\\\\u0000\\\"1\"]");
	expect_json(FLOAT(0.1f), BEFORE("0.1"));
	expect_json(FLOAT(16777216.0f), BEFORE("16777216"));
	expect_json(FLOAT(INFINITY), "[\"\\\\u0000\\\"1\"]");
	expect_json(DECIMAL(110, 2), BEFORE("110e-2"));
	expect_json(DECIMAL(-110, 2), BEFORE("-110e-2"));
	expect_json((amqp_field_value_t)
	{
		.kind = AMQP_FIELD_KIND_U64,.value.u64 = UINT64_MAX
	}, BEFORE("18446744073709551615"));
}

int
main(void)
{
	try_to_protocol();
	try_from_protocol();
	return wrong;
}
