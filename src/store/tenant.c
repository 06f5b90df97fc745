/*-------------------------------------------------------------------------
 *
 * tenant.c
 *	  The tenant of a job, as defined by its queue.
 *
 * The tenant is computed from the job's own headers, context or role at each write of the row.
 * The result is in the column "tenant".  The tenant therefore does not depend on the writing
 * role, and follows changes of the queue.
 *
 * src/store/tenant.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/varlena.h"

#include "store/store.h"

/*
 * Parse the setting tenant of a queue: setting NAME, header NAME, schema, or role.  Returns
 * false if it is malformed.  name must have room for JOBQ_MAX_TENANT_NAME + 1 bytes.
 */
bool
jobq_tenant_parse(const char *text, char *by, char *name)
{
	static const struct
	{
		const char *word;
		char		by;
		bool		named;
	}			words[] = {
		{"setting", TENANT_BY_SETTING, true},
		{"header", TENANT_BY_HEADER, true},
		{"schema", TENANT_BY_SCHEMA, false},
		{"role", TENANT_BY_ROLE, false},
	};
	size_t		length = strcspn(text, " ");

	for (int i = 0; i < (int) lengthof(words); i++)
	{
		const char *rest = text +length;

		if (strlen(words[i].word) != length ||
			strncmp(words[i].word, text, length) != 0)
			continue;
		rest += strspn(rest, " ");
		if (words[i].named ? *rest == '\0' || strlen(rest) > JOBQ_MAX_TENANT_NAME
			: text[length] != '\0')
			return false;
		*by = words[i].by;
		strlcpy(name, rest, JOBQ_MAX_TENANT_NAME + 1);
		return true;
	}
	return false;
}

/*
 * Return the string or number under the key in this column, an object, as text, or NULL.
 */
static char *
text_of_key(const JobqJob *job, int att, const char *key)
{
	JsonbValue	value;
	Jsonb	   *json;

	if (JOB_ISNULL(job, att))
		return NULL;
	json = DatumGetJsonbP(JOB(job, att));
	if (!JB_ROOT_IS_OBJECT(json) ||
		getKeyJsonValueFromContainer(&json->root, key, strlen(key),
									 &value) == NULL)
		return NULL;
	if (value.type == jbvString)
		return pnstrdup(value.val.string.val, value.val.string.len);
	if (value.type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out,
												   NumericGetDatum(value.val.numeric)));
	return NULL;
}

/*
 * Return the first schema of a search_path, except "$user" and system schemas, or NULL. The
 * schema need not exist.
 */
static char *
first_schema(char *path)
{
	List	   *names;
	ListCell   *lc;

	if (!SplitIdentifierString(path, ',', &names))
		return NULL;
	foreach(lc, names)
	{
		char	   *name = lfirst(lc);

		if (strcmp(name, "$user") != 0 && strncmp(name, "pg_", 3) != 0)
			return name;
	}
	return NULL;
}

/*
 * Return the job's tenant, in the current memory context.  Returns NULL if the job has none,
 * or if its queue defines no tenants.  queue may be NULL.
 */
char *
jobq_job_tenant(const JobqJob *job, const JobqQueue *queue)
{
	char	   *tenant = NULL;

	switch (queue == NULL ? TENANT_NONE : queue->tenant_by)
	{
		case TENANT_BY_SETTING:
			tenant = text_of_key(job, JOB_CONTEXT, queue->tenant_name);
			break;
		case TENANT_BY_HEADER:
			tenant = text_of_key(job, JOB_HEADERS, queue->tenant_name);
			break;
		case TENANT_BY_SCHEMA:
			tenant = text_of_key(job, JOB_CONTEXT, queue->tenant_name);
			if (tenant != NULL)
				tenant = first_schema(tenant);
			break;
		case TENANT_BY_ROLE:
			tenant = GetUserNameFromId(job_role(job), true);
			break;
	}
	if (tenant == NULL || tenant[0] == '\0')
		return NULL;
	tenant[pg_mbcliplen(tenant, strlen(tenant), JOBQ_MAX_TENANT)] = '\0';

	return tenant;
}

/*
 * Return the hash of a tenant for its lanes, turns and weights.  Never 0.  tenant may be NULL.
 */
uint32
jobq_tenant_hash(const char *tenant)
{
	uint32		hash = 2;		/* for jobs without a tenant */

	if (tenant != NULL)
		hash = hash_bytes((const unsigned char *) tenant, strlen(tenant));
	return hash == 0 ? 1 : hash;
}
