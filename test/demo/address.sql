UPDATE demo.maker SET address = 'c/o IEEE Registration Authority' WHERE address IS NULL;
SELECT jobq.retry(id) FROM jobq.failed_jobs \g /dev/null
