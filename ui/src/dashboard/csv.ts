/** A chart's values as a table that spreadsheets read (RFC 4180). */

import type { Line } from './plot'

export function csv(xName: string, lines: Line[]): string {
  const values = lines.map(({ points }) => new Map(points))
  const xs = [...new Set(values.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b)
  const rows = xs.map((x) => [x, ...values.map((line) => line.get(x))])
  return [[xName, ...lines.map(({ label }) => label)], ...rows].map((row) => row.map(field).join(',')).join('\r\n') + '\r\n'
}

/** Text that a spreadsheet would take for a formula is shown as text. */
function field(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return ''
  if (typeof value === 'number') return String(value)
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
