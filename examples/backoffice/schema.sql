CREATE TABLE IF NOT EXISTS payments (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text UNIQUE NOT NULL,  -- the idempotency key of the call
    payee text NOT NULL,
    amount numeric NOT NULL,
    purpose text NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (number text PRIMARY KEY, customer text NOT NULL, total numeric NOT NULL);
INSERT INTO orders VALUES ('A-17', 'rose@example.com', 80) ON CONFLICT DO NOTHING;
