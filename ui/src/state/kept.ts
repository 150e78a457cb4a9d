/** Small texts that the browser keeps for us, where it lets us: it may refuse even to be asked. */

export const localStore = (): Storage => localStorage
/** Of this tab. */
export const sessionStore = (): Storage => sessionStorage

export function kept(key: string, store: () => Storage): string | null {
  try {
    return store().getItem(key)
  } catch {
    return null
  }
}

/** What is not kept lasts as long as the page. */
export function keep(key: string, value: string, store: () => Storage): void {
  try {
    store().setItem(key, value)
  } catch {
    return
  }
}
