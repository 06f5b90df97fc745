<?php
/** The five methods of a PDO transport over a queue for consumers.  A message has id, token, urn, payload, headers and attempts. */
class Transport
{
	public function __construct(private PDO $db, private string $queue = 'default', private int $retryAfter = 90)
	{
	}

	public function publish(string $urn, mixed $payload, array $headers = [], int $delay = 0): int
	{
		return $this->call('enqueue(?, ?, queue => ?, delay => ?, headers => ?)',
			$urn, json_encode($payload), $this->queue, "$delay s", json_encode((object) $headers));
	}

	public function reserve(int $wait = 5): ?object
	{
		$query = $this->db->prepare('SELECT id, token, kind AS urn, payload, headers, attempt AS attempts
			FROM jobq.reserve(ARRAY[?::text], 1, ?, ?)');
		$query->execute([$this->queue, "$this->retryAfter s", "$wait s"]);
		if ($message = $query->fetchObject() ?: null)
			[$message->payload, $message->headers] = [json_decode($message->payload, true), json_decode($message->headers ?? '{}', true)];
		return $message;
	}

	public function ack(object $message): void
	{
		$this->call('ack(?, ?)', $message->id, $message->token);
	}

	public function release(object $message, int $delay = 0, mixed $payload = null): void
	{
		$this->call('release(?, ?, ?, ?)', $message->id, $message->token, "$delay s", $payload === null ? null : json_encode($payload));
	}

	public function deadLetter(object $message, string $reason): void
	{
		$this->call('reject(?, ?, ?)', $message->id, $message->token, $reason);
	}

	private function call(string $function, mixed ...$values): mixed
	{
		$query = $this->db->prepare("SELECT jobq.$function");
		$query->execute($values);
		return $query->fetchColumn();
	}
}
