-- Three branches with a schema each, and the queue of their invoices.
\set ON_ERROR_STOP on
SET client_min_messages = warning;

DO $$
DECLARE
	branch text;
BEGIN
	FOREACH branch IN ARRAY ARRAY['berlin', 'madrid', 'lyon'] LOOP
		EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', branch);
		EXECUTE format('CREATE SCHEMA %I', branch);
		PERFORM set_config('search_path', branch, true);
		CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, street text, monthly_fee numeric NOT NULL);
		CREATE TABLE invoice_number (last int NOT NULL);
		-- the primary key is the promise: no customer is invoiced twice for a month
		CREATE TABLE invoice (
			customer int REFERENCES customer, month date, number int UNIQUE NOT NULL, amount numeric NOT NULL,
			PRIMARY KEY (customer, month)
		);
		CREATE TABLE billing_run (month date PRIMARY KEY, batch bigint NOT NULL);
		CREATE TABLE notification (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT now(), text text);
		INSERT INTO invoice_number VALUES (0);
		INSERT INTO customer
			SELECT n, initcap(branch) || ' ' || n, CASE WHEN n % 50 > 0 THEN n || ' Main Street' END, 10 + n % 7
			FROM generate_series(1, 200) AS n;
	END LOOP;
END
$$;

-- Jobs run where they were enqueued: they take along the search_path, which is also their tenant.
-- The branches are served in turn, so none waits for the whole month of another.
DO $$
BEGIN
	PERFORM jobq.create_queue('invoices', mode => 'consumer', tenant => 'schema', fair => 'jobs');
	PERFORM jobq.create_queue('notifications', carry => '{search_path}');
END
$$;

-- When a batch ends, also after repairs, the branch gets a notification.
CREATE OR REPLACE FUNCTION public.notify_branch(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO notification (text)
	VALUES (format('%s: %s invoices are written, %s failed', payload ->> 'month',
		job.headers -> 'batch_counts' ->> 'completed', job.headers -> 'batch_counts' ->> 'dead'));
END
$$;
DO $$
BEGIN
	PERFORM jobq.register('branch.notify', 'public.notify_branch(jsonb, jobq.job_context)', queue => 'notifications');
END
$$;
