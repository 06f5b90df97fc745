<?php
// Shared by the web page and the workers: the connection, and a function for each use case.
require_once __DIR__ . '/../../libraries/php/Jobq.php';

const BRANCHES = ['berlin', 'madrid', 'lyon'];

function connect(): PDO
{
	return new PDO('pgsql:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::ATTR_DEFAULT_FETCH_MODE => PDO::FETCH_ASSOC]);
}

function rows(PDO $db, string $sql, array $values = []): array
{
	$query = $db->prepare($sql);
	$query->execute($values);
	return $query->fetchAll();
}

/** Run a function in a transaction, with the search_path of the branch. */
function in_branch(PDO $db, string $searchPath, callable $do): mixed
{
	$db->beginTransaction();
	try {
		rows($db, "SELECT set_config('search_path', ?, true)", [$searchPath]);
		$result = $do();
		$db->commit();
		return $result;
	} catch (Throwable $error) {
		$db->rollBack();
		throw $error;
	}
}

/** Enqueue a job for each customer; returns the batch.  A second click returns the same batch. */
function start_billing(PDO $db, string $branch, string $month): int
{
	return in_branch($db, $branch, function () use ($db, $month) {
		rows($db, 'LOCK TABLE billing_run IN SHARE ROW EXCLUSIVE MODE');
		if ($run = rows($db, 'SELECT batch FROM billing_run WHERE month = ?', [$month]))
			return $run[0]['batch'];
		$notify = json_encode(['kind' => 'branch.notify', 'payload' => ['month' => $month]]);
		$batch = rows($db, 'SELECT jobq.create_batch(?, on_finish => ?, allow_failures => true, start => true) AS id',
			["invoices $month", $notify])[0]['id'];
		rows($db, "SELECT jobq.add_jobs(?, 'invoice.write', ARRAY(
				SELECT jsonb_build_object('customer', id, 'month', ?::text) FROM customer ORDER BY id),
				options => '{\"queue\": \"invoices\", \"max_attempts\": 5, \"backoff\": \"exponential 500ms\"}')", [$batch, $month]);
		rows($db, 'INSERT INTO billing_run VALUES (?, ?)', [$month, $batch]);
		return $batch;
	});
}

/** The handler of a job: write one invoice.  A repeated attempt finds the invoice, and returns its number. */
function write_invoice(PDO $db, Jobq\Job $job): array
{
	['customer' => $id, 'month' => $month] = $job->payload;
	return in_branch($db, $job->context['search_path'], function () use ($db, $id, $month) {
		// this lock makes the numbers of a branch consecutive
		$number = rows($db, 'SELECT last + 1 AS next FROM invoice_number FOR UPDATE')[0]['next'];
		if ($done = rows($db, 'SELECT number FROM invoice WHERE customer = ? AND month = ?', [$id, $month]))
			return $done[0];
		$customer = rows($db, 'SELECT * FROM customer WHERE id = ?', [$id])[0];
		if ($customer['street'] === null)
			throw new Jobq\Reject("customer \"$customer[name]\" has no street");
		rows($db, 'INSERT INTO invoice VALUES (?, ?, ?, ?)', [$id, $month, $number, $customer['monthly_fee']]);
		rows($db, 'UPDATE invoice_number SET last = ?', [$number]);
		return ['number' => $number];
	});
}

/** Enter the missing streets, and run the dead letters of the batch again. */
function repair(PDO $db, string $branch, int $batch): int
{
	return in_branch($db, $branch, function () use ($db, $batch) {
		rows($db, "UPDATE customer SET street = 'Poste restante' WHERE street IS NULL");
		return rows($db, 'SELECT jobq.retry_many(batch_id => ?) AS retried', [$batch])[0]['retried'];
	});
}

/** The status of a batch at its end, or after the timeout; null if the batch belongs to another branch. */
function status(PDO $db, string $branch, int $batch, string $timeout = '0'): ?array
{
	if (!in_branch($db, $branch, fn () => rows($db, 'SELECT FROM billing_run WHERE batch = ?', [$batch])))
		return null;
	return rows($db, 'SELECT state, total, completed, dead, progress::int FROM jobq.wait_batch(?, ?)', [$batch, $timeout])[0];
}

function is_over(array $status): bool
{
	return in_array($status['state'], ['completed', 'failed', 'cancelled']);
}

function notifications(PDO $db, string $branch): array
{
	return in_branch($db, $branch, fn () => array_column(rows($db, 'SELECT text FROM notification ORDER BY id DESC LIMIT 5'), 'text'));
}
