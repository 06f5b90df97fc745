-- The users' inbox, and a handler for the ends of their jobs.
CREATE TABLE notification (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	recipient text NOT NULL,
	text text NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	read_at timestamptz
);
CREATE INDEX ON notification (recipient) WHERE read_at IS NULL;
CREATE FUNCTION notify_user(event jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO notification (recipient, text)
		SELECT headers ->> 'user', format('%s: %s', kind, coalesce(error, 'done'))
		FROM jobq.jobs WHERE id = (event -> 'job')::bigint AND headers ? 'user';
	PERFORM jobq.notify('notification');		-- for pages that are open
END
$$;
SELECT jobq.register('user.notify', 'notify_user(jsonb)');
SELECT jobq.on_event('completed', 'user.notify', kind => 'report'), jobq.on_event('dead', 'user.notify', kind => 'report');
