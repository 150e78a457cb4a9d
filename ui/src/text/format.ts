/** Numbers, times and texts as a reader likes them. */

const MISSING = '–'

/** Four significant digits, or all that stand before the point, without trailing zeros: 0.03125, 12.5, 12,346, 1.25e-6. */
export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) {
    return value.toExponential(digits - 1).replace(/\.?0*e\+?/, 'e')
  }
  if (Number.isInteger(value)) return integer(value)
  const beforePoint = String(Math.trunc(size)).length
  const [whole, fraction] = String(Number(value.toPrecision(Math.max(digits, beforePoint)))).split('.')
  return [grouped(whole!), ...(fraction ? [fraction] : [])].join('.')
}

export function integer(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING
  return grouped(String(Math.round(value)))
}

export function signed(value: number | null | undefined): string {
  return typeof value === 'number' && value > 0 ? `+${number(value)}` : number(value).replace('-', '−')
}

export function percent(part: number | null | undefined): string {
  if (part === null || part === undefined || !Number.isFinite(part)) return MISSING
  const value = part * 100
  if (value !== 0 && Math.abs(value) < 0.1) return `${value.toExponential(1)} %`
  return `${Number(value.toFixed(value < 10 ? 2 : value < 100 ? digitsBelow100(value) : 1))} %`
}

/** A share of episodes or tokens, where it stands among others: 2.1 %. */
export function rate(part: number | null | undefined): string {
  return percent(typeof part === 'number' && part < 0.99 ? Number(part.toFixed(3)) : part)
}

/** As many as tell it from 100. */
function digitsBelow100(value: number): number {
  return Math.min(10, Math.max(1, Math.ceil(-Math.log10(100 - value))))
}

/** 0.42 s, 12 s, 3 m 05 s, 2 h 10 m. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING
  if (seconds < 10) return `${Number(seconds.toFixed(2))} s`
  const whole = Math.round(seconds)
  if (whole < 60) return `${whole} s`
  const minutes = Math.floor(whole / 60)
  if (minutes < 60) return `${minutes} m ${two(whole % 60)} s`
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} m`
}

/** Of a column, in which the points stand below each other: 0.4, 12.0, 1,234.5. */
export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING
  const [whole, fraction] = value.toFixed(1).split('.')
  return `${grouped(whole!)}.${fraction}`
}

/** A Unix time as 2026-11-22 07:26:03, where the reader is. */
export function moment(time: number | null | undefined): string {
  if (time === null || time === undefined) return MISSING
  const date = new Date(time * 1000)
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join('-')
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
}

/** JSON with indentation; text that is JSON is laid out too. */
export function laidOut(value: unknown): string {
  if (typeof value !== 'string') return JSON.stringify(value, null, 2) ?? ''
  const text = value.trim()
  if (!/^[[{]/.test(text)) return value
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return value
  }
}

/** One line of at most `length` characters. */
export function brief(text: string, length: number): string {
  const line = text.slice(0, length * 4).replace(/\s+/g, ' ').trim()
  return line.length > length || text.length > length * 4 ? `${line.slice(0, length - 1)}…` : line
}

function two(value: number): string {
  return String(value).padStart(2, '0')
}

/** 1234567 as 1,234,567. */
function grouped(digits: string): string {
  return digits.replace(/\B(?=(\d{3})+$)/g, ',')
}
