/** A chart's values as a table that spreadsheets read (RFC 4180). */

import { table, type Curve } from './charts'

export function csv(xName: string, names: string[], all: Curve[]): string {
  const [xs, ...columns] = table(all)
  const rows = xs.map((x, index) => [x, ...columns.map((column) => column[index])])
  return [[xName, ...names], ...rows].map((row) => row.map(field).join(',')).join('\r\n') + '\r\n'
}

/** Text that a spreadsheet would take for a formula is shown as text. */
function field(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return ''
  if (typeof value === 'number') return String(value)
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
